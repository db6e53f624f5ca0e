package cache

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// servers is the number of servers of each cache; resizing adds one and removes it again.
const servers = 3

// lag is the longest time between a change in the status of pods and the moment at which clients notice the change.
const lag = 2 * time.Second

// theory is what must happen to the keys in a scenario, by calculation.
type theory struct {
	// best is the largest share of keys that any client can find again: a server that is replaced loses its memory.
	best float64
	// keptByProxy is the same share through the proxy, which moves items to new servers; 0 for best.
	keptByProxy float64
	// keptByAddress is the same share for a client that hashes the addresses of pods, because a replaced server has a new
	// address.
	keptByAddress float64
	// movedByAddress is the average number of times that such a client looks for a key on another server than before.
	movedByAddress float64
	// missed is the average number of times that a client misses a key; 0 for the number of lost keys.
	missed float64
	// noOld says that no client reads an old value, with whatever variant.
	noOld bool
	// unannounced says that clients cannot know of the loss beforehand.
	unannounced bool
}

// moment is the number of servers at a time that were ready and not terminating, and the wanted number.
type moment struct {
	at           time.Time
	serving, all int
}

// measured is what happened to the keys of a variant in a scenario, with the theory.
type measured struct {
	requests, hits, misses, failures int
	// kept is the number of keys that still had their original value at the end.
	kept int
	// old is the number of requests that read the original value after the client had written another one.
	old int
	// unavailable is the expected number of requests for keys of an unavailable server. It is 0 for clients that resolve
	// the name of a Deployment, unless the server stops without notice.
	unavailable float64
	// unexplained are the errors of requests that failed while all servers were available, and all errors of the proxy.
	unexplained []error
	theory
	variant
	seconds []point // hit ratio over time
}

// point is the hit ratio of one second, counted from the start of the scenario's action.
type point struct{ second, ratio float64 }

// measure evaluates the requests of a load. The last request for each key decides whether the key was kept.
func measure(samples []sample, moments []moment, acted time.Time, t theory, v variant) *measured {
	m := &measured{requests: len(samples), theory: t, variant: v}
	type second struct{ hits, all float64 }
	seconds := map[int]*second{}
	written := map[int]bool{} // by key
	for i, s := range samples {
		n := int(math.Floor(s.at.Sub(acted).Seconds()))
		if seconds[n] == nil {
			seconds[n] = &second{}
		}
		seconds[n].all++
		unavailable := 0.0
		if v.ring != podAddresses || t.unannounced {
			unavailable = unavailableAt(moments, s.at)
		}
		m.unavailable += unavailable
		switch s.outcome {
		case keptValue, refilledValue:
			m.hits++
			seconds[n].hits++
			if s.outcome == keptValue && written[i%keys] {
				m.old++
			} else if s.outcome == keptValue && i >= len(samples)-keys {
				m.kept++
			}
		case missed, refused:
			m.misses++
			written[i%keys] = written[i%keys] || s.outcome == missed
		case failed:
			m.failures++
			if unavailable == 0 || v.ring == proxied {
				m.unexplained = append(m.unexplained, fmt.Errorf("%.1f s after: %w", s.at.Sub(acted).Seconds(), s.err))
			}
		}
	}
	first, last := samples[0].at.Sub(acted).Seconds(), samples[len(samples)-1].at.Sub(acted).Seconds()
	for n := int(math.Ceil(first)); float64(n+1) <= last; n++ {
		if s := seconds[n]; s != nil {
			m.seconds = append(m.seconds, point{float64(n), s.hits / s.all})
		}
	}
	return m
}

// unavailableAt returns the largest share of servers that was unavailable around a time.
func unavailableAt(moments []moment, at time.Time) (share float64) {
	for _, m := range moments {
		if m.at.Sub(at).Abs() <= lag && m.serving < m.all {
			share = max(share, float64(m.all-m.serving)/float64(m.all))
		}
	}
	return share
}

// spread returns the tolerance for a share of keys, because hashes are random: four standard deviations. It is zero if
// theory says that all keys are kept, or none.
func spread(share float64) float64 { return 4 * math.Sqrt(share*(1-share)/keys) }

func (m *measured) keptShare() float64 { return float64(m.kept) / keys }

func (m *measured) hitRatio() float64 { return float64(m.hits) / float64(m.requests) }

// bestHitRatio returns the hit ratio of a client that misses each lost key once, and no other key.
func (m *measured) bestHitRatio() float64 { return 1 - (1-m.best)*keys/float64(m.requests) }

// Footnotes of the tables: why a value is worse than the best.
const (
	reasonMoved       = "¹"
	reasonUnavailable = "²"
)

func (m *measured) keptReason() string {
	if float64(m.kept) < (m.best-spread(m.best))*keys {
		return reasonMoved
	}
	return ""
}

func (m *measured) hitReason() string {
	switch {
	case float64(m.misses+m.failures) <= (1-m.best+spread(m.best))*keys:
		return ""
	case m.ring == podAddresses && !m.unannounced:
		return reasonMoved
	}
	return reasonUnavailable
}

func (m *measured) errorsReason() string {
	if m.failures > 0 {
		return reasonUnavailable
	}
	return ""
}

// wrong returns what is worse than the theory allows.
func (m *measured) wrong() (wrong []string) {
	kept, lost := m.best, 1-m.best
	switch {
	case m.ring == podAddresses:
		kept, lost = m.keptByAddress, m.movedByAddress
	case m.ring == proxied && m.keptByProxy > 0:
		kept, lost = m.keptByProxy, 1-m.keptByProxy
	}
	lost = max(lost, m.missed)
	if least := (kept - spread(kept)) * keys; float64(m.kept) < least {
		wrong = append(wrong, fmt.Sprintf("%d of %d keys were kept, want at least %.0f", m.kept, keys, least))
	}
	if most := (lost+spread(kept))*keys + m.unavailable; float64(m.misses+m.failures) > most {
		wrong = append(wrong, fmt.Sprintf("%d misses and %d errors, want at most %.0f, %.0f of them while a server was down",
			m.misses, m.failures, most, m.unavailable))
	}
	if (m.ring == proxied || m.noOld) && m.old > 0 {
		wrong = append(wrong, fmt.Sprintf("%d old values", m.old))
	}
	if n := len(m.unexplained); n > 0 {
		wrong = append(wrong, fmt.Sprintf("%d errors that nothing explains, such as\n%v", n,
			errors.Join(m.unexplained[:min(n, 5)]...)))
	}
	return wrong
}
