package desired

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

const mebi = 1 << 20

// What a memcached process needs beside the memory for items that -m limits. Bytes, from the source of memcached 1.6;
// docs/explanation/memory.md derives each.
const (
	// perConnection: the read buffer of 16 KiB (READ_BUFFER_SIZE in memcached.h), the connection itself, and its share of
	// response objects.
	perConnection = 20 << 10
	// perTLSConnection is what OpenSSL needs for a connection in addition. docs/explanation/memory.md has the measurement.
	perTLSConnection = 24 << 10
	// perThread: stack, log buffer, response bundles and allocator arena of a worker.
	perThread = 4 * mebi
	// base: the program, its other threads, and the first page of 1 MiB of each of about 40 slab classes, which memcached
	// takes even where -m is exhausted (do_slabs_newslab in slabs.c).
	base = 48 * mebi
)

// containerMemory is the memory request and limit of the memcached container of mc. They are equal, so that a node
// under memory pressure does not kill full caches first.
func containerMemory(mc *v1alpha1.Memcached) resource.Quantity {
	items, connection := resource.MustParse(mc.Spec.Memory), int64(perConnection)
	if mc.Spec.TLS != nil {
		connection += perTLSConnection
	}
	bytes := items.Value() + items.Value()/contract.HashTableShare +
		int64(mc.Spec.MaxConnections)*connection + int64(mc.Spec.Threads)*perThread + base
	return *resource.NewQuantity((bytes+mebi-1)/mebi*mebi, resource.BinarySI)
}

// resources of the memcached container: the derived ones, each replaced by the user's where given.
func resources(mc *v1alpha1.Memcached) *corev1ac.ResourceRequirementsApplyConfiguration {
	memory := containerMemory(mc)
	return replaceResources("50m", memory, memory, names.Pod(mc).Resources)
}

// agentResources are those of the agent, which uses 10 MiB, and a little more during a scrape or a handshake. Beside a
// proxy, the agent also holds the items that it moves: some MiB, or one larger item. That item is added to whatever
// limit the user gives: an agent that is killed takes its proxy out of the Service.
func agentResources(mc *v1alpha1.Memcached,
	component names.Component) *corev1ac.ResourceRequirementsApplyConfiguration {
	r := replaceResources("5m", resource.MustParse("16Mi"), *resource.NewQuantity(contract.MemoryLimit, resource.BinarySI),
		agentOverrides(mc))
	if component == names.Proxies {
		limit := (*r.Limits)[corev1.ResourceMemory]
		limit.Add(resource.MustParse(mc.Spec.MaxItemSize))
		(*r.Limits)[corev1.ResourceMemory] = limit
	}
	return r
}

// agentOverrides returns the resources that the user gives the agent; nil for none.
func agentOverrides(mc *v1alpha1.Memcached) *v1alpha1.ResourceRequirements {
	return nilIfEmpty(ptr.Deref(mc.Spec.Agent, v1alpha1.AgentSpec{}).Resources)
}

// replaceResources returns requests of cpu and memory and a limit of memory, each replaced where it is given.
func replaceResources(cpuRequest string, memoryRequest, memoryLimit resource.Quantity,
	override *v1alpha1.ResourceRequirements) *corev1ac.ResourceRequirementsApplyConfiguration {
	given := ptr.Deref(override, v1alpha1.ResourceRequirements{})
	requests := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cpuRequest),
		corev1.ResourceMemory: memoryRequest,
	}
	limits := corev1.ResourceList{corev1.ResourceMemory: memoryLimit}
	maps.Copy(limits, corev1.ResourceList(given.Limits))
	maps.Copy(requests, corev1.ResourceList(given.Requests))
	// The API server rounds up in the same way, and what it stores must compare equal.
	for _, list := range []corev1.ResourceList{limits, requests} {
		for name, quantity := range list {
			quantity.RoundUp(resource.Milli)
			list[name] = quantity
		}
	}
	// The API server refuses a request above its limit. If only one of the two is given, set the other to the same value.
	for name, limit := range limits {
		request := requests[name]
		if request.Cmp(limit) <= 0 {
			continue
		}
		if _, ok := given.Requests[name]; !ok {
			requests[name] = limit
		} else if _, ok := given.Limits[name]; !ok {
			limits[name] = request
		}
	}
	return corev1ac.ResourceRequirements().WithRequests(requests).WithLimits(limits)
}
