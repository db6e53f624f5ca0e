package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/tests/cluster"
)

// restart starts a killed operator without waiting until its lease expires.
func (w world) restart() {
	w.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.OperatorNamespace,
		Name: "memcached-operator.cache.example.com"}}
	w.must(client.IgnoreNotFound(w.Delete(w.ctx, lease)))
	w.must(operator.Start(w.ctx, 1))
}

// isGone returns nil if there is no Memcached with this name.
func (w world) isGone(name string) error {
	if _, err := load[v1alpha1.Memcached](w, name); !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s still exists: %w", name, err)
	}
	return nil
}

func (w world) noChildren() error {
	var left []string
	err := w.eachChild(func(o client.Object) { left = append(left, fmt.Sprintf("%T %s", o, o.GetName())) })
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("%d children are left: %v", len(left), left))
	}
	return err
}

// TestStop: an operator that stops on SIGTERM releases its lease, and the next one leads at once. In tests/chaos, a
// standby takes over from leaders that were killed.
func TestStop(t *testing.T) {
	needMoreTime(t)
	testEnv.Test(t, features.New("an operator that stops").Assess("leaves its lease to the next one", step(func(w world) {
		w.create("cache", 2)
		w.awaitReady("cache")
		w.must(operator.Stop(w.ctx))
		if holder, err := operator.Holder(w.ctx); err == nil {
			w.Errorf("%s stopped without releasing its lease", holder)
		}
		start := time.Now()
		w.must(operator.Start(w.ctx, 1))
		w.merge("cache", `{"size":3}`)
		w.awaitReady("cache")
		if took := time.Since(start); took > 15*time.Second {
			w.Errorf("the next leader took %s", took)
		}
	})).Feature())
}
