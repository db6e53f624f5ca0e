package children

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// writes are the names of the objects that were written.
type writes struct {
	sync.Mutex
	names []string
}

// set writes ConfigMaps to w. It reads nothing but what read says. The function makes changes that create ConfigMaps.
func (w *writes) set(read error) (*Set, func(names ...string) []Change) {
	note := func(obj client.Object) error {
		w.Lock()
		defer w.Unlock()
		if obj.GetName() == "poisoned" {
			panic("a poisoned object")
		}
		w.names = append(w.names, obj.GetName())
		return nil
	}
	c := interceptor.NewClient(nil, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return read
		},
		Patch: func(_ context.Context, _ client.WithWatch, obj client.Object, _ client.Patch, _ ...client.PatchOption) error {
			return note(obj)
		},
		Delete: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.DeleteOption) error {
			return note(obj)
		},
	})
	kind := NewKind(&corev1.ConfigMap{}, &corev1.ConfigMapList{}, corev1ac.ConfigMap)
	return &Set{Client: c, Live: c, Kinds: []Kind{kind}}, func(names ...string) (changes []Change) {
		for _, name := range names {
			config := corev1ac.ConfigMap(name, "default")
			changes = append(changes, Change{Key: Key{kind.Kind, name}, Desired: config, kind: kind})
		}
		return changes
	}
}

// TestPanic: a panic over one object is an error about this object, and does not end the process.
func TestPanic(t *testing.T) {
	t.Parallel()
	var w writes
	set, create := w.set(nil)
	owner := Owner{Object: &corev1.ConfigMap{}}
	r := set.Apply(t.Context(), owner, create("a", "poisoned", "b"), NewMemory(), true, time.Now())
	if r.Err == nil || !strings.Contains(r.Err.Error(), "ConfigMap poisoned: panic: a poisoned object") || r.AsDesired {
		t.Errorf("the result is %+v", r)
	}
	slices.Sort(w.names)
	if !slices.Equal(w.names, []string{"a", "b"}) || len(r.Written) != 2 {
		t.Errorf("wrote %q, and says %v", w.names, r.Written)
	}
}

// TestOwnerUnknown: while nobody can say whether the owner is there, nothing is made for it, and the rest is.
func TestOwnerUnknown(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"a": "b"}
	owner := Owner{Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "owner"}}, Labels: labels}
	ours := []metav1.OwnerReference{{UID: "owner", Controller: ptr.To(true)}}
	unavailable, missing := errors.New("unavailable"), apierrors.NewNotFound(corev1.Resource("configmaps"), "owner")
	for _, tt := range []struct {
		alive bool
		read  error
		fails error
		want  []string
	}{
		{true, unavailable, nil, []string{"adopted", "created", "deleted", "updated"}},
		{false, unavailable, unavailable, []string{"deleted", "updated"}},
		{false, missing, ErrOwnerGone, nil},
	} {
		var w writes
		set, create := w.set(tt.read)
		changes := create("created", "adopted", "updated", "deleted")
		changes[1].Live = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "adopted", Labels: labels}}
		changes[2].Live = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "updated", OwnerReferences: ours}}
		changes[3].Live = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "deleted", OwnerReferences: ours}}
		changes[3].Desired = nil
		r := set.Apply(t.Context(), owner, changes, NewMemory(), tt.alive, time.Now())
		slices.Sort(w.names)
		if !slices.Equal(w.names, tt.want) {
			t.Errorf("%v, alive %t: wrote %q, want %q", tt.read, tt.alive, w.names, tt.want)
		}
		if !errors.Is(r.Err, tt.fails) || r.AsDesired != (tt.fails == nil) || changes[0].Name != "created" {
			t.Errorf("%v, alive %t: the result is %+v", tt.read, tt.alive, r)
		}
	}
}
