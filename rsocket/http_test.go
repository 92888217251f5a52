// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rsocket"
)

// serve runs an HTTP server, and returns a client that reaches it by RDMA.
func serve(t *testing.T, handler http.Handler) (client *http.Client, url string) {
	t.Helper()
	ln := listen(t, rsocket.Config{})
	server := &http.Server{Handler: handler}
	served := inBackground(func() error { return server.Serve(ln) })
	var dialed sync.WaitGroup
	transport := &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		dialed.Add(1)
		conn, err := new(rsocket.Dialer).DialContext(ctx, "rdma", address)
		if err != nil {
			dialed.Done()
			return nil, err
		}
		return &counted{Conn: conn.(*rsocket.Conn), done: sync.OnceFunc(dialed.Done)}, nil
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		dialed.Wait() // the transport may have dialed in vain
		require.NoError(t, server.Shutdown(context.WithoutCancel(bounded(t))))
		require.Equal(t, http.ErrServerClosed, <-served)
	})
	return &http.Client{Transport: transport}, "http://" + ln.Addr().String()
}

// counted is a connection that says when it was closed.
type counted struct {
	*rsocket.Conn
	done func()
}

func (c *counted) Close() error {
	defer c.done()
	return c.Conn.Close()
}

// Requests and answers of all sizes, one after the other on one connection and
// at once on many.
func TestHTTP(t *testing.T) {
	client, url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body) // all of it, before net/http discards the rest for the answer
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, _ = w.Write(body)
	}))
	post := func(n int) error {
		data := strings.Repeat("x", n)
		resp, err := client.Post(url, "text/plain", strings.NewReader(data))
		if err != nil {
			return err
		}
		got, err := io.ReadAll(resp.Body)
		if err == nil && string(got) != data {
			err = fmt.Errorf("%d bytes of %d", len(got), n)
		}
		_ = resp.Body.Close()
		return err
	}
	for _, n := range []int{0, 1, 100_000} {
		require.NoError(t, post(n))
	}
	var results []<-chan error
	for range 10 {
		results = append(results, inBackground(func() error { return post(20_000) }))
	}
	for _, r := range results {
		require.NoError(t, <-r)
	}
}

// The server sees, by a read in the background that it aborts with a deadline
// in the past, that a client has gone.
func TestHTTPClientGoes(t *testing.T) {
	handling, gone := make(chan struct{}), make(chan struct{})
	client, url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/quick" {
			return
		}
		close(handling)
		<-r.Context().Done()
		close(gone)
	}))
	for range 3 { // each leaves a read that is aborted
		resp, err := client.Get(url + "/quick")
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	ctx, cancel := context.WithCancel(bounded(t))
	asked := inBackground(func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err == nil {
			_, err = client.Do(req) //nolint:bodyclose // there is none
		}
		return err
	})
	<-handling
	cancel()
	require.ErrorIs(t, <-asked, context.Canceled)
	<-gone
}

// A program that takes a connection over gets what has arrived, and can close
// its own direction alone.
func TestHTTPHijack(t *testing.T) {
	handled := make(chan struct{})
	client, url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(handled)
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(conn, rw)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}))
	req, err := http.NewRequestWithContext(bounded(t), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	stream := resp.Body.(io.ReadWriteCloser)
	_, err = io.WriteString(stream, "hello")
	require.NoError(t, err)
	got := make([]byte, 5)
	_, err = io.ReadFull(stream, got)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
	require.NoError(t, stream.Close())
	<-handled
}

// tlsConfigs returns configs of a server and of a client that trusts it.
func tlsConfigs(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"here"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		&tls.Config{RootCAs: roots, ServerName: "here"}
}

// TLS in both directions, its half close, and its close, which sets a deadline
// for its last word.
func TestTLS(t *testing.T) {
	serverConfig, clientConfig := tlsConfigs(t)
	a, b := pair(t, rsocket.Config{}, rsocket.Config{})
	client, server := tls.Client(a, clientConfig), tls.Server(b, serverConfig)
	data := bytesOf(100_000, 5)
	echoed := inBackground(func() error {
		got, err := io.ReadAll(server)
		if err == nil {
			_, err = server.Write(got)
		}
		if err == nil {
			err = server.Close()
		}
		return err
	})
	_, err := client.Write(data)
	require.NoError(t, err)
	require.NoError(t, client.CloseWrite())
	got, err := io.ReadAll(client)
	require.NoError(t, err)
	require.Equal(t, data, got)
	require.NoError(t, <-echoed)
	require.NoError(t, client.Close())
}
