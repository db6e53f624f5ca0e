package cache

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// servers is the number of servers of each cache, and the smaller one where its size changes.
const servers = 3

// lag bounds the time between what the status of pods says of a server and what a client sees of it.
const lag = 2 * time.Second

// theory is what becomes of the keys in a scenario, in theory.
type theory struct {
	// best is the largest share of the keys that any client can find again: memory of a server goes with the server.
	best float64
	// keptByAddress is that of a client that hashes the addresses of pods, of which a replaced server has another one.
	keptByAddress float64
	// movedByAddress is how often, on average, such a client looks for a key on another server than before.
	movedByAddress float64
	// unannounced is a loss that a client cannot hear of beforehand.
	unannounced bool
}

// moment is how many servers were ready and not about to end, of those that there should be.
type moment struct {
	at           time.Time
	serving, all int
}

// measured is what became of the keys of a variant in a scenario, beside what theory says.
type measured struct {
	requests, hits, misses, failures int
	// kept is the number of keys that had their first value in the end.
	kept int
	// away is the number of requests that, in the mean, were for keys of a server that was away. Clients that resolve the
	// name of a Deployment make none, unless the server ends without notice.
	away float64
	// unexplained are failed requests at times when no server was away, and all of those that the proxy failed.
	unexplained []error
	theory
	variant
	seconds []point // hit ratio over time
}

// point is the hit ratio of a second, counted from the moment at which something is done to the cache.
type point struct{ second, ratio float64 }

// measure sums up the requests of a load. The last one of each key decides whether it was kept.
func measure(samples []sample, moments []moment, acted time.Time, t theory, v variant) *measured {
	m := &measured{requests: len(samples), theory: t, variant: v}
	type second struct{ hits, all float64 }
	seconds := map[int]*second{}
	for i, s := range samples {
		n := int(math.Floor(s.at.Sub(acted).Seconds()))
		if seconds[n] == nil {
			seconds[n] = &second{}
		}
		seconds[n].all++
		away := 0.0
		if v.ring != podAddresses || t.unannounced {
			away = awayAt(moments, s.at)
		}
		m.away += away
		switch s.outcome {
		case keptValue, refilledValue:
			m.hits++
			seconds[n].hits++
			if s.outcome == keptValue && i >= len(samples)-keys {
				m.kept++
			}
		case missed:
			m.misses++
		case failed:
			m.failures++
			if away == 0 || v.ring == proxied {
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

// awayAt is the largest share of the servers that was away around a time.
func awayAt(moments []moment, at time.Time) (share float64) {
	for _, m := range moments {
		if m.at.Sub(at).Abs() <= lag && m.serving < m.all {
			share = max(share, float64(m.all-m.serving)/float64(m.all))
		}
	}
	return share
}

// spread is what the share of keys on a server may differ from theory by, because hashes are random: four standard
// deviations. Where theory says that all keys are kept, or none, it is zero.
func spread(share float64) float64 { return 4 * math.Sqrt(share*(1-share)/keys) }

func (m *measured) keptShare() float64 { return float64(m.kept) / keys }

func (m *measured) hitRatio() float64 { return float64(m.hits) / float64(m.requests) }

// bestHitRatio is that of a client that misses each lost key once, and none other.
func (m *measured) bestHitRatio() float64 { return 1 - (1-m.best)*keys/float64(m.requests) }

// reasons why a measured value is worse than the best.
const (
	reasonMoved = "¹"
	reasonAway  = "²"
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
	return reasonAway
}

func (m *measured) errorsReason() string {
	if m.failures > 0 {
		return reasonAway
	}
	return ""
}

// wrong says what is worse than the best by more than its reason explains.
func (m *measured) wrong() (wrong []string) {
	kept, lost := m.best, 1-m.best
	if m.ring == podAddresses {
		kept, lost = m.keptByAddress, m.movedByAddress
	}
	if least := (kept - spread(kept)) * keys; float64(m.kept) < least {
		wrong = append(wrong, fmt.Sprintf("%d of %d keys were kept, want at least %.0f", m.kept, keys, least))
	}
	if most := (lost+spread(kept))*keys + m.away; float64(m.misses+m.failures) > most {
		wrong = append(wrong, fmt.Sprintf("%d misses and %d errors, want at most %.0f, %.0f of them while a server was away",
			m.misses, m.failures, most, m.away))
	}
	if n := len(m.unexplained); n > 0 {
		wrong = append(wrong, fmt.Sprintf("%d errors that nothing explains, such as\n%v", n,
			errors.Join(m.unexplained[:min(n, 5)]...)))
	}
	return wrong
}
