package controllers

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// Kinds of children, as they are named in messages and remembered in memory.
const (
	kindDeployment = "Deployment"
	kindService    = "Service"
	kindBudget     = "PodDisruptionBudget"
	kindMemcached  = "Memcached"
)

// child pairs what a child should be with what the cache shows of it.
type child struct {
	gvk    schema.GroupVersionKind
	config runtime.ApplyConfiguration
	meta   *metav1ac.ObjectMetaApplyConfiguration // of config
	live   client.Object                          // nil where the cache shows none

	// extract returns the part of live that we own, in the form of config.
	extract func() (runtime.ApplyConfiguration, error)
	// fingerprint identifies config together with the set of fields that we own in live. It says nothing of their values: others
	// cannot change those without taking them out of the set, and after our own apply nothing counts as verified.
	fingerprint uint64
}

// children pairs the desired with the observed ones, in the order in which they are applied.
func children(want desiredState, obs observed) []child {
	return []child{
		newChild(want.service, want.service.ObjectMetaApplyConfiguration, obs.service, corev1ac.ExtractService),
		newChild(want.budget, want.budget.ObjectMetaApplyConfiguration, obs.budget, policyv1ac.ExtractPodDisruptionBudget),
		newChild(want.deployment, want.deployment.ObjectMetaApplyConfiguration, obs.deployment, appsv1ac.ExtractDeployment),
	}
}

// typedConfig is what every generated apply configuration offers.
type typedConfig interface {
	runtime.ApplyConfiguration
	GetKind() *string
	GetAPIVersion() *string
}

func newChild[C typedConfig, O any, P interface {
	*O
	client.Object
}](config C, meta *metav1ac.ObjectMetaApplyConfiguration, live P, extract func(P, string) (C, error)) child {
	c := child{
		gvk:    schema.FromAPIVersionAndKind(*config.GetAPIVersion(), *config.GetKind()),
		config: config,
		meta:   meta,
	}
	if live != nil {
		c.live = live
		c.extract = func() (runtime.ApplyConfiguration, error) { return extract(live, operatorName) }
	}
	return c
}

// ignoreGeneration takes the generation stamp of a child out of the comparison. A paused object may not move it.
func (c child) ignoreGeneration() {
	if _, stamped := c.meta.Annotations[v1alpha1.GenerationAnnotation]; stamped && c.live != nil {
		c.meta.WithAnnotations(map[string]string{
			v1alpha1.GenerationAnnotation: c.live.GetAnnotations()[v1alpha1.GenerationAnnotation],
		})
	}
}

// owned returns the part of the live child that we own when it differs from the desired one, and nil when the two are equal. The
// API server's own record of field ownership decides, so that fields that others set never matter.
func (c *child) owned(mem *memory) (runtime.ApplyConfiguration, error) {
	if err := c.takeFingerprint(); err != nil {
		return nil, err
	}
	if mem.verified[c.gvk.Kind] == c.fingerprint {
		return nil, nil
	}
	own, err := c.extract()
	if err != nil {
		return nil, fmt.Errorf("extract the owned fields of %s %s: %w", c.gvk.Kind, c.live.GetName(), err)
	}
	if !equality.Semantic.DeepEqual(own, c.config) {
		return own, nil
	}
	mem.verified[c.gvk.Kind] = c.fingerprint
	return nil, nil
}

func (c *child) takeFingerprint() error {
	h := fnv.New64a()
	if err := json.NewEncoder(h).Encode(c.config); err != nil {
		return fmt.Errorf("encode %s: %w", c.gvk.Kind, err)
	}
	h.Write([]byte(c.live.GetUID()))
	if entry := ownFields(c.live.GetManagedFields()); entry != nil && entry.FieldsV1 != nil {
		h.Write(entry.FieldsV1.GetRawBytes())
	}
	c.fingerprint = h.Sum64()
	return nil
}

// ownFields finds the record of the fields that our applies own.
func ownFields(entries []metav1.ManagedFieldsEntry) *metav1.ManagedFieldsEntry {
	for i := range entries {
		e := &entries[i]
		if e.Manager == operatorName && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == "" {
			return e
		}
	}
	return nil
}

// Relations of an object to a Memcached.
type relation int

const (
	foreign  relation = iota // not ours, never touched
	ours                     // controlled by the Memcached
	orphaned                 // carries the labels of the Memcached's children and has no controller: to be adopted
)

// ownership tells how obj relates to mc.
func ownership(mc *v1alpha1.Memcached, obj metav1.Object) relation {
	if controller := metav1.GetControllerOfNoCopy(obj); controller != nil {
		if controller.UID == mc.UID {
			return ours
		}
		return foreign
	}
	have := obj.GetLabels()
	for k, v := range childLabels(mc) {
		if have[k] != v {
			return foreign
		}
	}
	return orphaned
}
