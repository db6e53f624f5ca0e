package e2e

import (
	"cmp"
	"crypto/rand"
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

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/testca"
)

// password is a password of users that no test tells apart. TestSecretContents of tests/permissions looks for passwords
// that cannot be words.
var password = rand.Text()

// secret creates or updates a Secret.
func (w world) secret(name string, content map[string][]byte) {
	w.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Data: content}
	err := w.Create(w.ctx, s)
	if client.IgnoreAlreadyExists(err) == nil && err != nil {
		err = w.Update(w.ctx, s)
	}
	w.must(err)
}

// passwords writes a Secret with an authfile of users such as "user:password".
func (w world) passwords(name string, users ...string) {
	w.Helper()
	var file []byte
	for _, user := range users {
		file = append(file, user+"\n"...)
	}
	w.secret(name, map[string][]byte{"authfile": file})
}

// testCA is a CA that writes its certificates into Secrets.
type testCA struct {
	w world
	*testca.CA
}

func (w world) newCA() testCA {
	w.Helper()
	ca, err := testca.New()
	w.must(err)
	return testCA{w, ca}
}

// issue returns a certificate for a client.
func (ca testCA) issue(name string) tls.Certificate {
	ca.w.Helper()
	issued, err := ca.Issue(name)
	ca.w.must(err)
	return issued
}

// certificate writes a Secret with a certificate for host and all names in front of it, and returns the content of the
// Secret.
func (ca testCA) certificate(name, host string) map[string][]byte {
	ca.w.Helper()
	content, err := ca.Secret("*."+host, host)
	ca.w.must(err)
	ca.w.secret(name, content)
	return content
}

// memcachedClient is a client of one memcached server.
type memcachedClient struct {
	address string
	tls     *tls.Config // nil: plain text
	login   string      // "user password"; empty: no login
	// patience is how long a connection may last; 0 means 5 seconds.
	patience time.Duration
}

// dial connects, and logs in if there is a login.
func (c memcachedClient) dial() (*textproto.Conn, error) {
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

// ask sends a request and returns the first line of the response. A server that refuses a client sends the reason
// before it closes the connection, so ask reads even if it could not send the request.
func ask(c *textproto.Conn, format string, args ...any) (string, error) {
	sent := c.PrintfLine(format, args...)
	answer, err := c.ReadLine()
	return answer, errors.Join(sent, err)
}

// store returns nil if memcached stores a key for the client.
func (c memcachedClient) store() error {
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

// mustStore fails unless the client stores a key within 10 seconds: a server that has just become ready may need a
// moment.
func (w world) mustStore(what string, c memcachedClient) {
	w.Helper()
	harness.Eventually(w, what, 10*time.Second, c.store)
}

// mustRefuse fails unless the client gets an error that matches words.
func (w world) mustRefuse(what, words string, c memcachedClient) {
	w.Helper()
	if err := c.store(); err == nil || !regexp.MustCompile(words).MatchString(err.Error()) {
		w.Errorf("%s: want an error about %q, got %v", what, words, err)
	}
}
