package agent

import (
	"net/http"
	"sync/atomic"
	"time"
)

// stopNotice is how long a server still accepts connections after the kubelet announced its end, so that clients and
// Services notice.
const stopNotice = 5 * time.Second

// drain keeps a server until the operator lets it stop.
type drain struct {
	waiting atomic.Int32  // requests of the kubelet
	stop    chan struct{} // each of them receives from it
}

// wait answers the kubelet once the server may stop.
func (d *drain) wait(w http.ResponseWriter, r *http.Request) {
	d.waiting.Add(1)
	defer d.waiting.Add(-1)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	notice := time.After(stopNotice)
	var end <-chan time.Time // nil until the server may stop
	for {
		select {
		case <-d.stop:
			end = notice
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// letStop lets the server stop. The operator repeats the request until memcached has stopped.
func (d *drain) letStop(w http.ResponseWriter, _ *http.Request) {
	select {
	case d.stop <- struct{}{}:
	default:
		http.Error(w, "the kubelet does not stop the server", http.StatusConflict)
	}
}
