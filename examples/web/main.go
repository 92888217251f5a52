// SPDX-License-Identifier: Apache-2.0

// Web is an HTTP server and client over RDMA: net/http runs on the connections
// of package rsocket as it does on TCP's, and so do TLS and HTTP/2.
//
//	web -listen 192.0.2.1:7471 -dir /srv/www
//	web http://192.0.2.1:7471/page.html
//
// With a certificate, the server speaks HTTP/2 over TLS:
//
//	go run "$(go env GOROOT)/src/crypto/tls/generate_cert.go" -host 192.0.2.1
//	web -listen 192.0.2.1:7471 -cert cert.pem -key key.pem
//	web -ca cert.pem https://192.0.2.1:7471/page.html
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/rsocket"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("web: ")
	listen := flag.String("listen", "", "run the server at this `address`, such as 192.0.2.1:7471 or :7471")
	dir := flag.String("dir", ".", "`folder` whose files the server serves")
	cert := flag.String("cert", "", "`file` with the server's certificate: serve https, not http")
	key := flag.String("key", "", "`file` with the certificate's private key")
	ca := flag.String("ca", "", "`file` with the certificate that the client trusts (default: those of the system)")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: web -listen address [-dir folder] [-cert file -key file]\n       web [-ca file] url...")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *listen != "" && flag.NArg() == 0 && (*cert == "") == (*key == ""):
		err = serve(ctx, *listen, *dir, *cert, *key)
	case *listen == "" && flag.NArg() > 0:
		err = get(ctx, *ca, flag.Args())
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// grace is how long answers may take after an interrupt.
const grace = 10 * time.Second

// serve serves the folder's files until ctx ends.
func serve(ctx context.Context, address, dir, cert, key string) error {
	ln, err := new(rsocket.ListenConfig).Listen(ctx, "rdma", address)
	if err != nil {
		return err
	}
	defer ln.Close()
	server := &http.Server{Handler: http.FileServer(http.Dir(dir)), ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() {
		if cert == "" {
			ended <- server.Serve(ln)
		} else {
			ended <- server.ServeTLS(ln, cert, key)
		}
	}()
	fmt.Println("listening on", ln.Addr())
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	// Shutdown returns when all connections are closed, so that this program
	// may exit.
	return errors.Join(err, server.Shutdown(last))
}

// get prints what is at the URLs.
func get(ctx context.Context, ca string, urls []string) error {
	config := &tls.Config{}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s has no certificate", ca)
		}
	}
	var d dialer
	defer d.close()
	client := &http.Client{Transport: &http.Transport{DialContext: d.dial, TLSClientConfig: config, ForceAttemptHTTP2: true}}
	for _, url := range urls {
		if err := getOne(ctx, client, url); err != nil {
			return err
		}
	}
	return nil
}

func getOne(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	log.Printf("%s: %s %s", url, resp.Proto, resp.Status)
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// dialer dials for a transport, and closes its connections at the end. The
// transport does so, too, but a program cannot wait for that; and a program
// that exits with an open connection looks like one that has died.
type dialer struct {
	mu    sync.Mutex
	conns []net.Conn
}

// dial connects to an address. The transport's network is always tcp.
func (d *dialer) dial(ctx context.Context, _, address string) (net.Conn, error) {
	conn, err := new(rsocket.Dialer).DialContext(ctx, "rdma", address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = append(d.conns, conn)
	return conn, nil
}

func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.conns {
		conn.Close()
	}
}
