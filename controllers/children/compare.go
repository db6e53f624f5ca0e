package children

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Change is a child that is not as desired.
type Change struct {
	Key
	// Live is what the cache shows; nil where the child must be created.
	Live client.Object
	// Own is what the operator owns of Live.
	Own runtime.ApplyConfiguration
	// Desired is nil where the child must be deleted.
	Desired runtime.ApplyConfiguration
	// Answer is what the operator would own after an apply, where the API server was asked; nil where it was not.
	Answer runtime.ApplyConfiguration
	// NoAnswer is why the API server, when asked, could not say what an apply would change; nil where it did. That it
	// refuses the apply is an answer.
	NoAnswer error

	kind Kind
}

// Difference names the fields of a change, for the log.
func (c *Change) Difference() string {
	switch {
	case c.Live == nil:
		return "created"
	case c.Desired == nil:
		return "deleted"
	}
	return differing(c.Own, c.Desired)
}

// Compare returns the children that differ from the desired ones, in the order of the desired ones, and after these the
// children that must not exist: those that were applied for the owner and that nobody desires any more. The API
// server's record of field ownership says which fields to compare, so that fields that others set never matter.
//
// With ask, the API server is asked whether an apply would change anything: an admission plugin may have the last word
// on a field of ours. The answer is remembered.
func (s *Set) Compare(ctx context.Context, owner Owner, desired []runtime.ApplyConfiguration, observed Observed,
	mem *Memory, ask bool) ([]Change, error) {
	var changes []Change
	wanted := map[Key]bool{}
	for _, config := range desired {
		kind, name, err := s.find(config)
		if err != nil {
			return nil, err
		}
		c := Change{Key: Key{kind.Kind, name}, Desired: config, kind: kind}
		if err := s.LookUp(ctx, owner, c.Key, observed); err != nil {
			return nil, err
		}
		c.Live = observed[c.Key]
		wanted[c.Key] = true
		if c.Live != nil {
			if c.Own, err = s.Own(c.Live); err != nil {
				return nil, err
			}
			if equality.Semantic.DeepEqual(c.Own, config) {
				delete(mem.compared, c.Key)
				continue
			}
			if s.settled(ctx, owner, &c, mem, ask) {
				continue
			}
		}
		changes = append(changes, c)
	}
	for _, kind := range s.Kinds {
		for key, obj := range observed {
			if key.Kind == kind.Kind && !wanted[key] && owner.Relation(obj) == Ours && s.applied(obj) &&
				obj.GetDeletionTimestamp() == nil {
				changes = append(changes, Change{Key: key, Live: obj, kind: kind})
			}
		}
	}
	return changes, nil
}

// settled reports whether an apply of a differing child would change nothing of ours.
func (s *Set) settled(ctx context.Context, owner Owner, c *Change, mem *Memory, ask bool) bool {
	now := comparison{desired: Digest(c.Desired), own: Digest(c.Own)}
	if before, ok := mem.compared[c.Key]; ok {
		if before.answer != nil {
			own, err := s.Own(before.answer)
			if err != nil {
				return false
			}
			before.own, before.answer = Digest(own), nil
			mem.remember(c.Key, before)
		}
		if before.desired == now.desired && before.own == now.own {
			return before.settled
		}
	}
	if !ask || owner.Relation(c.Live) != Ours {
		return false
	}
	answer, _, err := s.apply(ctx, c.kind, c.Desired, c.Live, client.DryRunAll)
	if err != nil {
		if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			c.NoAnswer = fmt.Errorf("ask what an apply of %s would change: %w", c.Key, err)
		}
		return false
	}
	if c.Answer, err = s.Own(answer); err != nil {
		return false
	}
	now.settled = Digest(c.Answer) == now.own
	mem.remember(c.Key, now)
	return now.settled
}

// absentVersion is a resource version that no object has: an apply that names it creates the object, and is refused
// where there is one.
const absentVersion = "1"

// apply applies config over live, which is nil where the object is to be created, and returns what the API server made
// of it.
func (s *Set) apply(ctx context.Context, kind Kind, config runtime.ApplyConfiguration, live client.Object,
	options ...client.PatchOption) (answer client.Object, asApplied bool, err error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(config)
	if err != nil {
		return nil, false, err
	}
	u := &unstructured.Unstructured{Object: content}
	options = append(options, client.FieldOwner(s.FieldManager))
	if live != nil {
		// The uid keeps an object that took the place of our child meanwhile from being overwritten.
		u.SetUID(live.GetUID())
		options = append(options, client.ForceOwnership)
	} else {
		u.SetResourceVersion(absentVersion) // protects an object that somebody else made under that name since we looked
	}
	body, err := json.Marshal(content)
	if err != nil {
		return nil, false, err
	}
	answer = kind.Object.DeepCopyObject().(client.Object)
	answer.SetNamespace(u.GetNamespace())
	answer.SetName(u.GetName())
	// A patch of a typed object is answered in protobuf, which is cheaper to decode than JSON.
	if err := s.Client.Patch(ctx, answer, client.RawPatch(types.ApplyPatchType, body), options...); err != nil {
		return nil, false, err
	}
	answered, err := runtime.DefaultUnstructuredConverter.ToUnstructured(answer)
	if err != nil {
		return nil, false, err
	}
	u.SetResourceVersion(answer.GetResourceVersion())
	answered["kind"], answered["apiVersion"] = u.GetKind(), u.GetAPIVersion()
	return answer, contains(answered, content), nil
}

// atomic are the fields of children that are owned as a whole, with what others add inside: those that the schema of
// server-side apply, in client-go's applyconfigurations/internal, calls atomic. Lists of strings need no mention, nor
// fields inside of these.
var atomic = []string{"ingress", "items", "labelSelector", "nodeSelector", "podSelector",
	"preferredDuringSchedulingIgnoredDuringExecution", "requiredDuringSchedulingIgnoredDuringExecution", "selector",
	"tolerations"}

// contains reports whether all that one JSON value says is in another. It is a cheap answer to the question whether
// an admission plugin changed what was applied: where it says no, what is owned must be extracted to know.
func contains(have, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		for key, value := range want {
			if slices.Contains(atomic, key) {
				ok = ok && reflect.DeepEqual(have[key], value)
			} else {
				ok = ok && contains(have[key], value)
			}
		}
		return ok
	case []any:
		have, ok := have.([]any)
		return ok && slices.EqualFunc(have, want, contains)
	}
	return have == want
}

// Digest identifies a value by its JSON form.
func Digest(v any) uint64 {
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(v) // of a type that is made to be encoded, into memory
	return h.Sum64()
}

// differing are the paths of the fields in which two configurations differ, at most five.
func differing(a, b runtime.ApplyConfiguration) string {
	var values [2]*typed.TypedValue
	for i, config := range []runtime.ApplyConfiguration{a, b} {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(config)
		if err != nil {
			return err.Error()
		}
		if values[i], err = typed.DeducedParseableType.FromUnstructured(content); err != nil {
			return err.Error()
		}
	}
	c, err := values[0].Compare(values[1])
	if err != nil {
		return err.Error()
	}
	var paths []string
	c.Added.Union(c.Modified).Union(c.Removed).Leaves().Iterate(func(p fieldpath.Path) {
		paths = append(paths, strings.TrimPrefix(p.String(), "."))
	})
	slices.Sort(paths)
	if n := len(paths); n > 5 {
		paths = append(paths[:5], fmt.Sprintf("and %d more", n-5))
	}
	return strings.Join(paths, ", ")
}
