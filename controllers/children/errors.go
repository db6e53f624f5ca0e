package children

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of a StallError.
const (
	// ReasonConflict means that a foreign object has the name of a child.
	ReasonConflict = "Conflict"
	// ReasonInvalid says that the API server refuses a child.
	ReasonInvalid = "Invalid"
)

// StallError is an error that no retry can fix: somebody must change something. errors.As finds it in joined errors.
type StallError struct{ Reason, Message string }

func (e *StallError) Error() string { return e.Message }

// ActionError is the error of an action on some objects, the same for all.
type ActionError struct {
	Action  string   // such as "apply"
	Objects []string // such as "Service cache"
	Err     error
}

func (f *ActionError) Error() string {
	return fmt.Sprintf("%s %s: %s", f.Action, Names(f.Objects, 3), Limit(f.reason(), maxReason))
}

func (f *ActionError) Unwrap() error { return f.Err }

// maxReason limits the text of one error, in bytes, so that a message has room for others.
const maxReason = 1024

// objectPrefix is how the API server names the object of a request, before the reason.
var objectPrefix = regexp.MustCompile(`^[\w.]+ "[^"]*" is (forbidden|invalid): `)

func (f *ActionError) reason() string { return objectPrefix.ReplaceAllString(f.Err.Error(), "") }

// Join joins errors like errors.Join. ActionErrors of one action for one reason become one, even if the reason names
// the object, as those of webhooks do. StallErrors come first, so that no limit of a text cuts them off.
func Join(errs ...error) error {
	failures, byStall := map[string]*ActionError{}, map[bool][]error{}
	for _, err := range errs {
		if f, ok := err.(*ActionError); ok { //nolint:errorlint // an error that wraps one says more
			kind, name, _ := strings.Cut(f.Objects[0], " ")
			words := strings.FieldsFunc(f.reason(), func(r rune) bool { return strings.ContainsRune(" \n/\"':,;()[]", r) })
			words = slices.DeleteFunc(words, func(word string) bool { return word == kind || word == name })
			key := f.Action + strings.Join(words, " ")
			if same := failures[key]; same != nil {
				same.Objects = append(same.Objects, f.Objects...)
				continue
			}
			failures[key] = f
		}
		isStall := errors.As(err, new(*StallError))
		byStall[isStall] = append(byStall[isStall], err)
	}
	return errors.Join(append(byStall[true], byStall[false]...)...)
}

// Names returns a list as a text, which names at most so many, and the number of the others.
func Names(list []string, most int) string {
	if len(list) > most {
		return fmt.Sprintf("%s and %d others", strings.Join(list[:most-1], ", "), len(list)-most+1)
	}
	return strings.Join(list, ", ")
}

// Limit cuts a text after a number of bytes.
func Limit(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// IsConflict reports whether a write failed because the object was replaced or changed since it was read: the resource
// version or the uid that the write named is not the current one, or the object is being deleted. The API server
// reports two of these cases as Invalid: metadata.uid is immutable, and no finalizer can be added to an object that is
// being deleted.
func IsConflict(err error) bool {
	if apierrors.IsConflict(err) {
		return true
	}
	return slices.ContainsFunc(causes(err), func(cause metav1.StatusCause) bool {
		return cause.Field == "metadata.uid" || cause.Field == "metadata.finalizers"
	})
}

// causes returns the causes of an Invalid response of the API server.
func causes(err error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	return status.Status().Details.Causes
}

// immutable is how Kubernetes refuses another value of a field that an object has for ever.
var immutable = regexp.MustCompile("field is immutable|may not change once set|updates to statefulset spec")

// failure returns the error of an apply. No retry can fix an Invalid response. An object that has another value in a
// field that cannot change was created by somebody else: deleting it helps.
func (c *change) failure(err error) error {
	if !apierrors.IsInvalid(err) || IsConflict(err) {
		return &ActionError{"apply", []string{c.String()}, err}
	}
	for _, cause := range causes(err) {
		if c.existing != nil && immutable.MatchString(cause.Message) {
			return &StallError{ReasonInvalid, fmt.Sprintf("%s has another %s, which cannot change: delete it, and the "+
				"operator creates it again%s", c.Key, strings.TrimPrefix(cause.Field, "spec."),
				map[bool]string{true: "; its servers restart empty"}[templateDigest(c.existing) != 0])}
		}
	}
	return &ActionError{"apply", []string{c.String()}, &StallError{ReasonInvalid, err.Error()}}
}
