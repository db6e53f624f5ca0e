package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/controllers/status"
)

// replaceServers deletes the servers of a StatefulSet that are of an older template, as many as spec.rollout allows.
// The StatefulSet's controller creates each anew, of the newest one.
func (p *pass) replaceServers(ctx context.Context) error {
	set, ok := p.workload.(*appsv1.StatefulSet)
	if !ok || p.held || p.mc.Spec.Paused || p.obs.NamespaceTerminating {
		return nil
	}
	victims, wait := outdated(set, p.obs.Pods, p.mc.Spec.Rollout.MaxUnavailable, p.now)
	if wait > 0 && (p.again == 0 || wait < p.again) {
		p.again = wait
	}
	if len(victims) == 0 {
		return nil
	}
	// What the cache shows may be older than what another operator process wrote, and a server of the newest template
	// would then look outdated.
	live := &appsv1.StatefulSet{}
	if err := p.APIReader.Get(ctx, client.ObjectKeyFromObject(set), live); err != nil {
		return fmt.Errorf("look up StatefulSet %s: %w", set.Name, err)
	}
	if live.UID != set.UID || live.ResourceVersion != set.ResourceVersion {
		p.again = raceRetry
		return nil
	}
	for _, pod := range victims {
		log.FromContext(ctx).Info("replacing a server", "pod", pod.Name, "generation", p.mc.Generation)
		if err := p.changedMeanwhile(p.set.Delete(ctx, pod, metav1.DeletePropagationBackground)); err != nil {
			return err
		}
	}
	return nil
}

// outdated are the servers to replace now. A server that does not answer is replaced first, and costs nothing; of those
// that do, the ones with the highest number go first, until maxUnavailable are away. wait is how long until a server
// that came back counts; 0 where a watch tells.
func outdated(set *appsv1.StatefulSet, pods []corev1.Pod, maxUnavailable int32,
	now time.Time) (victims []*corev1.Pod, wait time.Duration) {
	if set.Status.ObservedGeneration < set.Generation || !set.DeletionTimestamp.IsZero() {
		return nil, 0
	}
	wanted := int(ptr.Deref(set.Spec.Replicas, 1))
	budget, minReady := int(maxUnavailable)-wanted, time.Duration(set.Spec.MinReadySeconds)*time.Second
	var old []*corev1.Pod
	available := map[*corev1.Pod]bool{}
	for i := range pods {
		pod := &pods[i]
		if n := ordinal(set, pod); n < 0 || n >= wanted || !pod.DeletionTimestamp.IsZero() {
			continue // of another workload, about to be removed, or about to be created anew
		}
		isOld := pod.Labels[appsv1.StatefulSetRevisionLabel] != set.Status.UpdateRevision
		if isOld {
			old = append(old, pod)
		}
		// Only the servers that replace others are waited for. An outdated one that has just become ready answers: were it
		// not counted, a change soon after the creation would replace all servers at once.
		switch since, ready := status.ReadySince(pod); {
		case !ready:
		case !isOld && now.Before(since.Add(minReady)):
			if left := since.Add(minReady).Sub(now); wait == 0 || left < wait {
				wait = left
			}
		default:
			available[pod] = true
			budget++
		}
	}
	slices.SortFunc(old, func(a, b *corev1.Pod) int { return cmp.Compare(ordinal(set, b), ordinal(set, a)) })
	for _, pod := range old {
		if !available[pod] {
			victims = append(victims, pod)
		}
	}
	for _, pod := range old {
		if available[pod] && budget > 0 {
			victims = append(victims, pod)
			budget--
		}
	}
	if len(victims) == len(old) {
		wait = 0
	}
	return victims, wait
}

// ordinal is the number of a server; -1 for a pod that is none of the StatefulSet.
func ordinal(set *appsv1.StatefulSet, pod *corev1.Pod) int {
	number, ok := strings.CutPrefix(pod.Name, set.Name+"-")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || !metav1.IsControlledBy(pod, set) {
		return -1
	}
	return n
}
