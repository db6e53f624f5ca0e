package simulation

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

var (
	garbageCollector    *exec.Cmd
	garbageCollectorDir string
)

// startGarbageCollector starts a kube-controller-manager that only collects garbage.
func startGarbageCollector() error {
	user, err := environment.AddUser(envtest.User{Name: "garbage-collector", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return err
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		return err
	}
	if garbageCollectorDir, err = os.MkdirTemp("", "simulation-"); err != nil {
		return err
	}
	file := filepath.Join(garbageCollectorDir, "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		return err
	}
	garbageCollector = exec.Command(filepath.Join(environment.BinaryAssetsDirectory, "kube-controller-manager"),
		"--kubeconfig="+file, "--controllers=garbage-collector-controller", "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=2000", "--kube-api-burst=2000") // it works for all runs at the same time
	return garbageCollector.Start()
}

func stopGarbageCollector() {
	if garbageCollector != nil && garbageCollector.Process != nil {
		_ = garbageCollector.Process.Kill()
		_ = garbageCollector.Wait()
	}
	_ = os.RemoveAll(garbageCollectorDir)
}

// garbageOf names an object that the garbage collector is about to change, and says why; empty for none.
func garbageOf(s state) string {
	is := map[types.UID]client.Object{}
	blocked := map[types.UID]bool{} // their deletion in the foreground waits for a dependent
	for _, objects := range s {
		for _, obj := range objects {
			is[obj.GetUID()] = obj
			for _, owner := range obj.GetOwnerReferences() {
				blocked[owner.UID] = blocked[owner.UID] || ptr.Deref(owner.BlockOwnerDeletion, false)
			}
		}
	}
	isDeleted := func(obj client.Object, finalizer string) bool {
		return obj.GetDeletionTimestamp() != nil && slices.Contains(obj.GetFinalizers(), finalizer)
	}
	hasOwner := func(obj client.Object) bool {
		return slices.ContainsFunc(obj.GetOwnerReferences(), func(owner metav1.OwnerReference) bool {
			return owner.APIVersion == notServed ||
				is[owner.UID] != nil && !isDeleted(is[owner.UID], metav1.FinalizerDeleteDependents)
		})
	}
	for _, obj := range is {
		why := ""
		switch {
		case isDeleted(obj, metav1.FinalizerOrphanDependents):
			why = "its dependents become orphans"
		case isDeleted(obj, metav1.FinalizerDeleteDependents) && !blocked[obj.GetUID()]:
			why = "it has no dependents any more"
		case obj.GetDeletionTimestamp() == nil && len(obj.GetOwnerReferences()) > 0 && !hasOwner(obj):
			why = "it has lost its owner"
		}
		if why != "" {
			return fmt.Sprintf("%s %s: %s", kindOf(obj), obj.GetName(), why)
		}
	}
	return ""
}
