package children

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// recorder is a set of ConfigMaps that records the names of those that are written. It reads nothing but what read
// says, and refuses the objects in refused.
type recorder struct {
	*Set
	names   []string
	refused []string
}

func newRecorder(read error, refused ...string) *recorder {
	r := &recorder{refused: refused}
	write := func(obj client.Object) error {
		if slices.Contains(r.refused, obj.GetName()) {
			return errors.New("refused")
		}
		r.names = append(r.names, obj.GetName())
		return nil
	}
	c := interceptor.NewClient(nil, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return read
		},
		Patch: func(_ context.Context, _ client.WithWatch, obj client.Object, _ client.Patch, _ ...client.PatchOption) error {
			return write(obj)
		},
		Delete: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.DeleteOption) error {
			return write(obj)
		},
	})
	labels := map[string]string{"a": "b"}
	r.Set = &Set{Client: c, APIReader: c, Kinds: []Kind{configMaps}, State: &State{},
		Owner: Owner{Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "owner"}}, Labels: labels}}
	return r
}

var configMaps = NewKind(&corev1.ConfigMap{}, &corev1.ConfigMapList{}, corev1ac.ConfigMap)

// create is a change that creates a ConfigMap.
func create(name string, guards ...string) Change {
	c := Change{Key: Key{"ConfigMap", name}, Desired: corev1ac.ConfigMap(name, "default"), kind: configMaps}
	for _, guard := range guards {
		c.Guards = append(c.Guards, Key{"ConfigMap", guard})
	}
	return c
}

// over returns the change with an existing object that is controlled by this uid; "" for no controller.
func (c Change) over(uid types.UID) Change {
	existing := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: c.Name, Labels: map[string]string{"a": "b"}}}
	if uid != "" {
		existing.OwnerReferences = []metav1.OwnerReference{{Kind: "Other", UID: uid, Controller: ptr.To(true)}}
	}
	c.Existing = existing
	return c
}

func (c Change) deleted() Change {
	c.Desired = nil
	return c
}

// TestOwnerUnknown: while the owner cannot be read, nothing is created for it, and all other changes are written.
func TestOwnerUnknown(t *testing.T) {
	t.Parallel()
	unavailable, missing := errors.New("unavailable"), apierrors.NewNotFound(corev1.Resource("configmaps"), "owner")
	for _, tt := range []struct {
		verified bool
		read     error
		fails    error
		want     []string
	}{
		{true, unavailable, nil, []string{"created", "adopted", "updated", "deleted"}},
		{false, unavailable, unavailable, []string{"updated", "deleted"}},
		{false, missing, ErrOwnerDeleted, nil},
	} {
		r := newRecorder(tt.read)
		result := r.Apply(t.Context(), []Change{create("created"), create("adopted").over(""),
			create("updated").over("owner"), create("deleted").over("owner").deleted()}, tt.verified, time.Now())
		if !slices.Equal(r.names, tt.want) || !errors.Is(result.Err, tt.fails) {
			t.Errorf("%v, verified %t: wrote %q, want %q; the result is %+v", tt.read, tt.verified, r.names, tt.want, result)
		}
	}
}

// TestGuards: a child is not written while one that guards it is refused, somebody else's, or about to go, and neither
// is what that child guards. All others are written.
func TestGuards(t *testing.T) {
	t.Parallel()
	workloads := []Change{create("guarded", "guard"), create("further", "guarded"),
		create("running", "guard").over("owner"), create("free")}
	for name, tt := range map[string]struct {
		guard   Change
		refused []string
		want    []string
	}{
		"written":                   {create("guard"), nil, []string{"guard", "guarded", "further", "running", "free"}},
		"refused":                   {create("guard"), []string{"guard"}, []string{"free"}},
		"conflict":                  {create("guard").over("other"), nil, []string{"free"}},
		"refused, of an older form": {create("guard").over("owner"), []string{"guard"}, []string{"free"}},
	} {
		r := newRecorder(nil, tt.refused...)
		result := r.Apply(t.Context(), append([]Change{tt.guard}, workloads...), true, time.Now())
		if !slices.Equal(r.names, tt.want) || (result.Err != nil) != (len(tt.want) == 1) {
			t.Errorf("%s: wrote %q, want %q; the result is %+v", name, r.names, tt.want, result)
		}
	}
}
