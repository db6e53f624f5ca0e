package harness

import (
	"bytes"
	"net"
	"strings"
	"time"
)

// Answering is the client's side of a connection to a server that answers each request at once.
type Answering struct {
	net.Conn // nil: clients use no other method
	answer   func(request string) string
	answers  bytes.Buffer // that the client has not read yet
}

// NewAnswering returns a connection to a server that answers in this way.
func NewAnswering(answer func(request string) string) *Answering { return &Answering{answer: answer} }

// Read reads what the server has answered.
func (a *Answering) Read(b []byte) (int, error) { return a.answers.Read(b) }

// Write sends a request.
func (a *Answering) Write(request []byte) (int, error) {
	a.answers.WriteString(a.answer(strings.TrimSuffix(string(request), "\r\n")))
	return len(request), nil
}

// SetDeadline does nothing.
func (a *Answering) SetDeadline(time.Time) error { return nil }

// Close does nothing.
func (a *Answering) Close() error { return nil }

// RemoteAddr returns an address.
func (a *Answering) RemoteAddr() net.Addr { return &net.TCPAddr{} }
