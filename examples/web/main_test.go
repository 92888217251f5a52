// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestMain(m *testing.M) {
	process.BecomeMain(main)
	m.Run()
}

func TestWrongArguments(t *testing.T) {
	process.Misused(t, "", "-x", "-listen :7471 http://192.0.2.1:7471/", "-listen :7471 -cert cert.pem", "-listen :7471 -key key.pem", "-listen")
}

// site makes a folder with files of several sizes.
func site(t *testing.T) (dir string, files map[string][]byte) {
	t.Helper()
	dir, files = t.TempDir(), map[string][]byte{}
	for name, size := range map[string]int{"empty": 0, "small": 5, "medium": 100_000, "large": 300_321} {
		random := make([]byte, size/2+1)
		_, err := mathrand.NewChaCha8([32]byte{byte(size)}).Read(random)
		require.NoError(t, err)
		files[name] = []byte(hex.EncodeToString(random)[:size])
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), files[name], 0o600))
	}
	return dir, files
}

func TestWeb(t *testing.T) {
	d := testdevice.Require(t)
	dir, files := site(t)
	server := process.StartMain(t, "-dir", dir, "-listen", d.IPv4.String()+":0")
	url := "http://" + server.Prints(`listening on (\S+)\n`) + "/"

	for name, content := range files {
		client := process.RunMain(t, url+name)
		require.Zero(t, client.Wait())
		require.True(t, bytes.Equal(content, []byte(client.Stdout())), name)
		require.Equal(t, "web: "+url+name+": HTTP/1.1 200 OK\n", client.Stderr())
	}
	var clients []*process.Process
	for range 3 { // at the same time, each with one connection for all files
		clients = append(clients, process.StartMain(t, url+"large", url+"small", url+"empty", url+"medium", url+"large"))
	}
	want := bytes.Join([][]byte{files["large"], files["small"], files["medium"], files["large"]}, nil)
	for _, client := range clients {
		require.Zero(t, client.Wait())
		require.True(t, bytes.Equal(want, []byte(client.Stdout())))
	}
	missing := process.RunMain(t, url+"small", url+"missing")
	require.Equal(t, 1, missing.Wait())
	require.Equal(t, string(files["small"]), missing.Stdout())
	require.Contains(t, missing.Stderr(), "web: "+url+"missing: 404 Not Found\n")

	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	require.Empty(t, server.Stderr())

	nobody := process.RunMain(t, url)
	require.Equal(t, 1, nobody.Wait())
	require.Contains(t, nobody.Stderr(), "no program listens on the port")
}

// certificate writes a certificate of the server at an address, and its key.
func certificate(t *testing.T, ip netip.Addr) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{ip.AsSlice()}, IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}

func TestTLS(t *testing.T) {
	d := testdevice.Require(t)
	dir, files := site(t)
	cert, key := certificate(t, d.IPv4)
	server := process.StartMain(t, "-dir", dir, "-cert", cert, "-key", key, "-listen", d.IPv4.String()+":0")
	url := "https://" + server.Prints(`listening on (\S+)\n`) + "/"

	client := process.RunMain(t, "-ca", cert, url+"large", url+"small")
	require.Zero(t, client.Wait())
	require.True(t, bytes.Equal(append(bytes.Clone(files["large"]), files["small"]...), []byte(client.Stdout())))
	require.Equal(t, "web: "+url+"large: HTTP/2.0 200 OK\nweb: "+url+"small: HTTP/2.0 200 OK\n", client.Stderr())

	other, _ := certificate(t, d.IPv4)
	stranger := process.RunMain(t, "-ca", other, url+"small")
	require.Equal(t, 1, stranger.Wait())
	require.Contains(t, stranger.Stderr(), "certificate signed by unknown authority")
	require.Empty(t, stranger.Stdout())

	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())

	for _, file := range []string{key, filepath.Join(dir, "missing")} {
		require.Equal(t, 1, process.RunMain(t, "-ca", file, url).Wait())
	}
}
