// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rsocket"
)

// bytesOf returns n bytes that look random.
func bytesOf(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

func TestTransfer(t *testing.T) {
	for _, size := range []int{1, 64, 65, 2048, 140_000} {
		client, server := pair(t, rsocket.Config{}, rsocket.Config{})
		data := bytesOf(size, uint64(size))
		sent := make(chan error, 2)
		go func() {
			_, err := client.Write(data)
			if err == nil {
				err = client.CloseWrite()
			}
			sent <- err
		}()
		go func() {
			_, err := io.Copy(struct{ io.Writer }{server}, struct{ io.Reader }{server})
			if err == nil {
				err = server.CloseWrite()
			}
			sent <- err
		}()
		got, err := io.ReadAll(client)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
		require.NoError(t, <-sent)
		require.NoError(t, <-sent)
	}
}

// All waiting calls learn that requests were flushed, even if rdmacm never
// reports the cause.
func TestFlushedWithoutCause(t *testing.T) {
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			testdevice.Require(t).Have(t, testdevice.LatePosts)
			config := rsocket.Config{Pool: pool(), KeepAlive: -1}
			a, b := pair(t, config, rsocket.Config{})
			require.NoError(t, b.SetLinger(0)) // as no answer will come
			reading := inBackground(func() error {
				_, err := a.Read(make([]byte, 1))
				return err
			})
			require.NoError(t, rsocket.FailBelow(a))
			_, err := a.Write([]byte{1}) // with a pool, there are no receives to flush
			require.NoError(t, err)
			isOpError(t, cmtest.Take(t, reading, "the reader's error"), "read", syscall.ECONNRESET)
			_, err = a.Write([]byte{1})
			isOpError(t, err, "write", syscall.ECONNRESET)
		})
	}
}
