package simulation

import (
	"os"
	"os/exec"
	"path/filepath"

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
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		assets = environment.BinaryAssetsDirectory
	}
	garbageCollector = exec.Command(filepath.Join(assets, "kube-controller-manager"), "--kubeconfig="+file,
		"--controllers=garbage-collector-controller", "--leader-elect=false", "--secure-port=0")
	return garbageCollector.Start()
}

func stopGarbageCollector() {
	if garbageCollector != nil && garbageCollector.Process != nil {
		_ = garbageCollector.Process.Kill()
		_ = garbageCollector.Wait()
	}
	_ = os.RemoveAll(garbageCollectorDir)
}
