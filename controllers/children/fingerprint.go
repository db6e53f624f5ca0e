package children

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// seed is that of all fingerprints, which never leave the process.
var seed = maphash.MakeSeed()

// Fingerprint identifies what Compare reads of the observed objects. It costs a fraction of a comparison: where it is
// the same, so is the answer. Where the owner is among the objects, all of its annotations count: users set them.
//
// The spec of an object changes with its generation. Labels, annotations, owners and what the operator owns do not; of
// an object that has no generation, all changes with the resource version. A user may have given a generation to an
// object whose kind has none: there the time of the operator's record tells that another process wrote as the operator.
func (s *Set) Fingerprint(owner Owner, observed Observed) uint64 {
	var h maphash.Hash
	var sum uint64
	for key, obj := range observed {
		h.SetSeed(seed)
		hashAll(&h, key.Kind, key.Name, string(obj.GetUID()), strconv.FormatInt(obj.GetGeneration(), 10))
		if obj.GetGeneration() == 0 {
			hashAll(&h, obj.GetResourceVersion())
		}
		if at := obj.GetDeletionTimestamp(); at != nil {
			hashAll(&h, at.String())
		}
		hashMap(&h, obj.GetLabels(), "")
		for _, o := range obj.GetOwnerReferences() {
			hashAll(&h, o.APIVersion, o.Kind, o.Name, string(o.UID))
			maphash.WriteComparable(&h, [4]bool{o.Controller != nil, o.Controller != nil && *o.Controller,
				o.BlockOwnerDeletion != nil, o.BlockOwnerDeletion != nil && *o.BlockOwnerDeletion})
		}
		own := ""
		for _, e := range obj.GetManagedFields() {
			if s.isOwn(e) && obj != owner.Object {
				own = e.FieldsV1.GetRawString()
				if e.Time != nil {
					maphash.WriteComparable(&h, e.Time.Unix())
				}
			}
		}
		hashAll(&h, own)
		hashMap(&h, obj.GetAnnotations(), own) // others note on workloads what they did
		sum += h.Sum64()                       // in no order, as the map
	}
	return sum
}

// hashAll adds strings, and where each of them ends.
func hashAll(h *maphash.Hash, list ...string) {
	for _, s := range list {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:])
		_, _ = h.WriteString(s)
	}
}

// hashMap adds the entries of a map whose keys are in a record of owned fields; with an empty record, all entries.
func hashMap(h *maphash.Hash, m map[string]string, record string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if record == "" || strings.Contains(record, `"f:`+k+`"`) {
			hashAll(h, k, m[k])
		}
	}
	hashAll(h, "")
}
