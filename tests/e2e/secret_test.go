package e2e

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/tests/authority"
	"github.com/example/memcached-operator/tests/harness"
)

// secret makes a Secret, or gives the one that is there that content.
func (w world) secret(name string, content map[string][]byte) {
	w.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Data: content}
	err := w.Create(w.ctx, s)
	if client.IgnoreAlreadyExists(err) == nil && err != nil {
		err = w.Update(w.ctx, s)
	}
	w.must(err)
}

// passwords makes a Secret with memcached's authfile, out of users such as "user:password".
func (w world) passwords(name string, users ...string) {
	w.Helper()
	var file []byte
	for _, user := range users {
		file = append(file, user+"\n"...)
	}
	w.secret(name, map[string][]byte{"authfile": file})
}

// issuer is a certificate authority whose certificates are in Secrets.
type issuer struct {
	w world
	*authority.Authority
}

func (w world) newIssuer() issuer {
	w.Helper()
	a, err := authority.New()
	w.must(err)
	return issuer{w, a}
}

// issue makes a certificate of a client.
func (a issuer) issue(name string) tls.Certificate {
	a.w.Helper()
	issued, err := a.Issue(name)
	a.w.must(err)
	return issued
}

// certificate makes a Secret with a certificate for any name in front of host, and returns what is in the Secret.
func (a issuer) certificate(name, host string) map[string][]byte {
	a.w.Helper()
	content, err := a.Secret("*."+host, host)
	a.w.must(err)
	a.w.secret(name, content)
	return content
}

// caller is a client of a memcached.
type caller struct {
	address string
	tls     *tls.Config // nil for plain text
	login   string      // "user password"; empty for none
	// patience is how long a connection may last; 0 for 5 seconds.
	patience time.Duration
}

// dial connects, and logs in.
func (c caller) dial() (*textproto.Conn, error) {
	patience := cmp.Or(c.patience, 5*time.Second)
	conn, err := net.DialTimeout("tcp", c.address, patience)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if c.tls != nil {
		conn = tls.Client(conn, c.tls)
	}
	t := textproto.NewConn(conn)
	if c.login == "" {
		return t, nil
	}
	answer, err := ask(t, "set login 0 0 %d\r\n%s", len(c.login), c.login)
	if err == nil && answer != "STORED" {
		err = fmt.Errorf("login: %s", answer)
	}
	if err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

// ask sends a request and returns the line that answers it. A server that refuses a client says why before it closes
// the connection: that can be read even where the connection was closed too early for the request.
func ask(c *textproto.Conn, format string, args ...any) (string, error) {
	sent := c.PrintfLine(format, args...)
	answer, err := c.ReadLine()
	return answer, errors.Join(sent, err)
}

// store returns nil if memcached stores what the client sends.
func (c caller) store() error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := ask(conn, "set key 0 0 5\r\nvalue")
	if err == nil && answer != "STORED" {
		err = fmt.Errorf("set: %s", answer)
	}
	return err
}

// stores fails unless the client succeeds; a server that has just become ready may be asked again.
func (w world) stores(what string, c caller) {
	w.Helper()
	harness.Eventually(w, what, 10*time.Second, c.store)
}

// refused fails unless the client is refused with words that match.
func (w world) refused(what, words string, c caller) {
	w.Helper()
	if err := c.store(); err == nil || !regexp.MustCompile(words).MatchString(err.Error()) {
		w.Errorf("%s: want an error about %q, got %v", what, words, err)
	}
}
