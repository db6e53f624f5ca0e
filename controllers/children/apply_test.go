package children

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// recorder is a set of ConfigMaps that records the names of the written ones.
type recorder struct {
	*Set
	// Of the owner on the API server:
	generation  int64
	annotations map[string]string
	written     []string
}

// newRecorder returns a recorder whose reads return the owner or readErr, and whose writes of the refused objects fail.
func newRecorder(readErr error, refused ...string) *recorder {
	r := &recorder{}
	write := func(obj client.Object) error {
		if slices.Contains(refused, obj.GetName()) {
			return errors.New("refused")
		}
		r.written = append(r.written, obj.GetName())
		return nil
	}
	c := interceptor.NewClient(nil, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, live client.Object,
			_ ...client.GetOption) error {
			live.SetUID("owner")
			live.SetGeneration(r.generation)
			live.SetAnnotations(r.annotations)
			return readErr
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

var configMaps = NewKind(&corev1.ConfigMap{}, &corev1.ConfigMapList{})

// creation returns the creation of a ConfigMap after its guards.
func creation(name string, guards ...string) change {
	c := change{Key: Key{"ConfigMap", name}, desired: corev1ac.ConfigMap(name, "default")}
	for _, guard := range guards {
		c.guards = append(c.guards, Key{"ConfigMap", guard})
	}
	return c
}

// predecessor is the uid of a deleted owner of the same kind and name.
const predecessor types.UID = "predecessor"

// ofExisting returns the change of an existing ConfigMap whose controller has this uid; "" for no controller.
func (c change) ofExisting(uid types.UID) change {
	existing := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: c.Name, Labels: map[string]string{"a": "b"}}}
	if uid != "" {
		existing.OwnerReferences = []metav1.OwnerReference{{Kind: "Other", UID: uid, Controller: ptr.To(true)}}
	}
	if uid == predecessor {
		existing.OwnerReferences[0].Kind = ""
	}
	c.existing = existing
	return c
}

// asDeletion returns the deletion of the existing ConfigMap.
func (c change) asDeletion() change {
	c.desired = nil
	return c
}

// TestUnverifiedOwner: while the owner cannot be read, nothing is created or adopted, no leftover of a predecessor is
// deleted, and a process does not begin to write. All else is written. If the owner is deleted or has changed, nothing
// is written.
func TestUnverifiedOwner(t *testing.T) {
	t.Parallel()
	unavailable, missing := errors.New("unavailable"), apierrors.NewNotFound(corev1.Resource("configmaps"), "owner")
	all := []string{"created", "adopted", "updated", "deleted", "leftover"}
	for name, tt := range map[string]struct {
		verified, before bool // now, and by an earlier reconcile of this process
		generation       int64
		annotations      map[string]string
		readErr          error
		wantErr          error
		want             []string
	}{
		"verified":                      {true, false, 0, nil, unavailable, nil, all},
		"not verified":                  {false, false, 0, nil, nil, nil, all},
		"unavailable":                   {false, false, 0, nil, unavailable, unavailable, nil},
		"unavailable, verified before":  {false, true, 0, nil, unavailable, unavailable, []string{"updated", "deleted"}},
		"changed":                       {false, false, 1, nil, nil, ErrStaleOwner, nil},
		"annotated":                     {false, false, 0, map[string]string{"a": "b"}, nil, ErrStaleOwner, nil},
		"changed after it was verified": {false, true, 1, nil, nil, ErrStaleOwner, nil},
		"deleted":                       {false, false, 0, nil, missing, ErrStaleOwner, nil},
	} {
		r := newRecorder(tt.readErr)
		r.generation, r.annotations, r.New, r.State.ownerVerified = tt.generation, tt.annotations, tt.verified, tt.before
		result := r.Apply(t.Context(), Changes{creation("created"), creation("adopted").ofExisting(""),
			creation("updated").ofExisting("owner"), creation("deleted").ofExisting("owner").asDeletion(),
			creation("leftover").ofExisting(predecessor)}, time.Now())
		if !slices.Equal(r.written, tt.want) || !errors.Is(result.Err, tt.wantErr) {
			t.Errorf("%s: wrote %q with error %v, want %q and %v", name, r.written, result.Err, tt.want, tt.wantErr)
		}
	}
}

// TestGuards: if a guard is refused or foreign, the children that it guards are not written, nor those that they guard.
// All others are written, and a leftover of a predecessor is deleted.
func TestGuards(t *testing.T) {
	t.Parallel()
	workloads := Changes{creation("guarded", "guard"), creation("indirect", "guarded"),
		creation("existing", "guard").ofExisting("owner"), creation("leftover", "guard").ofExisting(predecessor),
		creation("free")}
	for name, tt := range map[string]struct {
		guard   change
		refused []string
		want    []string
	}{
		"written":        {creation("guard"), nil, []string{"guard", "guarded", "indirect", "existing", "leftover", "free"}},
		"refused":        {creation("guard"), []string{"guard"}, []string{"leftover", "free"}},
		"foreign":        {creation("guard").ofExisting("other"), nil, []string{"leftover", "free"}},
		"refused update": {creation("guard").ofExisting("owner"), []string{"guard"}, []string{"leftover", "free"}},
	} {
		r := newRecorder(nil, tt.refused...)
		r.New = true
		result := r.Apply(t.Context(), append(Changes{tt.guard}, workloads...), time.Now())
		if !slices.Equal(r.written, tt.want) || (result.Err != nil) != (len(tt.want) == 2) {
			t.Errorf("%s: wrote %q with error %v, want %q", name, r.written, result.Err, tt.want)
		}
	}
}

// TestLeftoverWithAnotherOwner: a child of a predecessor that somebody else owns too is not deleted. The garbage
// collector removes the reference to the predecessor.
func TestLeftoverWithAnotherOwner(t *testing.T) {
	t.Parallel()
	r, c := newRecorder(nil), creation("leftover").ofExisting(predecessor)
	c.existing.SetOwnerReferences(append(c.existing.GetOwnerReferences(), metav1.OwnerReference{UID: "somebody"}))
	if result := r.Apply(t.Context(), Changes{c}, time.Now()); len(r.written) > 0 || result.Waiting == "" {
		t.Errorf("wrote %q, and waits with %q, want no write, and a wait", r.written, result.Waiting)
	}
}

// TestJoin: errors of one reason are said once, with the names of the children. The error that stalls comes first, and
// no error takes the room of the others.
func TestJoin(t *testing.T) {
	t.Parallel()
	services := corev1.Resource("services")
	failure := func(object string, err error) error { return &ActionError{"apply", []string{object}, err} }
	forbidden := func(name, reason string) error {
		return failure("Service "+name, apierrors.NewForbidden(services, name, errors.New(reason)))
	}
	webhook := func(kind, name string) error {
		return failure(kind+" "+name, fmt.Errorf("webhook denied the request: %s/default/%s has no label team", kind, name))
	}
	stall := failure("ConfigMap a", &StallError{ReasonInvalid, `ConfigMap "a" is invalid: data: Too long`})
	long := strings.Repeat("x", 5000)
	for want, errs := range map[string][]error{
		"":                                    {nil, nil},
		"apply Service a: quota":              {forbidden("a", "quota"), nil},
		"apply Service a, Service a-0: quota": {forbidden("a", "quota"), forbidden("a-0", "quota")},
		"apply Service a, Service a-0 and 2 others: quota": {forbidden("a", "quota"), forbidden("a-0", "quota"),
			forbidden("a-1", "quota"), forbidden("a-2", "quota")},
		"apply Service a: quota\napply Service a-0: other": {forbidden("a", "quota"), forbidden("a-0", "other")},
		"apply Service a, ConfigMap a-0: webhook denied the request: Service/default/a has no label team": {
			webhook("Service", "a"), webhook("ConfigMap", "a-0")},
		"apply ConfigMap a: data: Too long\napply Service a, Service b: quota\nannotate pod a: quota": {
			forbidden("a", "quota"), Join(stall), forbidden("b", "quota"),
			&ActionError{"annotate", []string{"pod a"}, errors.New("quota")}},
		"apply ConfigMap a: data: Too long\nother\napply Service a: quota": {errors.New("other"),
			forbidden("a", "quota"), stall},
		"apply Service a: " + long[:maxReason] + "\napply Service b: quota": {forbidden("a", long), forbidden("b", "quota")},
	} {
		got := ""
		if err := Join(errs...); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %d bytes, want %d: %q, want %q", len(got), len(want), Limit(got, 300), Limit(want, 300))
		}
	}
	if err := Join(forbidden("a", "quota"), stall); !apierrors.IsForbidden(err) || !errors.As(err, new(*StallError)) {
		t.Errorf("got %v, want an error that is both", err)
	}
}
