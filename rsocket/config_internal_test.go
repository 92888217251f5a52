// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDefaults(t *testing.T) {
	usual := Config{ReadBuffer: 131072, WriteBuffer: 131072, SendQueue: 384, RecvQueue: 384, MaxInline: 64}
	for name, c := range map[string]struct {
		files map[string]string
		want  func(*Config)
	}{
		"no files": {nil, func(*Config) {}},
		"all": {
			map[string]string{"mem_default": "4096\n", "wmem_default": " 8192 ", "sqsize_default": "20", "rqsize_default": "30", "inline_default": "16"},
			func(c *Config) {
				*c = Config{ReadBuffer: 4096, WriteBuffer: 8192, SendQueue: 20, RecvQueue: 30, MaxInline: 16}
			},
		},
		"no inline": {map[string]string{"inline_default": "0"}, func(c *Config) { c.MaxInline = -1 }},
		"nonsense":  {map[string]string{"mem_default": "much", "wmem_default": "-5", "sqsize_default": ""}, func(*Config) {}},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			for file, text := range c.files {
				require.NoError(t, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600))
			}
			want := usual
			c.want(&want)
			require.Equal(t, want, defaultsIn(folder))
		})
	}
}

func TestComplete(t *testing.T) {
	c := Config{ReadBuffer: 3, WriteBuffer: 3, SendQueue: -5, RecvQueue: 1 << 40, MaxInline: -3, KeepAlive: -1}.complete()
	require.Equal(t, Config{ReadBuffer: 2048, WriteBuffer: 4096, SendQueue: -5, RecvQueue: 65535, MaxInline: -3, KeepAlive: -1}, c)
	require.Equal(t, 3002, Config{ReadBuffer: 3001}.complete().ReadBuffer)
	require.Equal(t, maxBuffer, Config{WriteBuffer: 1 << 40}.complete().WriteBuffer)
	require.Equal(t, defaultKeepAlive, Config{}.complete().KeepAlive)
}

// Fields that are zero get the system's defaults, and the others none.
func TestCompleteWithDefaults(t *testing.T) {
	d := systemDefaults()
	d.KeepAlive = defaultKeepAlive
	require.Equal(t, d, Config{}.complete())
	own := Config{ReadBuffer: 1 << 14, WriteBuffer: 1 << 15, SendQueue: 100, RecvQueue: 101, MaxInline: 8, KeepAlive: time.Minute}
	require.Equal(t, own, own.complete())
	require.Equal(t, 65535, Config{SendQueue: 1 << 40}.complete().SendQueue)
}

// What is looked up has no IPv4 address in IPv6's form.
func TestLookupUnmaps(t *testing.T) {
	for network, want := range map[string]bool{"rdma": true, "rdma4": true, "rdma6": false} {
		addrs, err := lookup(t.Context(), network, "tcp", "[::ffff:192.0.2.1]:7")
		if !want {
			require.ErrorContains(t, err, "no suitable address")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:7")}, addrs)
	}
}

// The checks of the peer stop for ever.
func TestKeepAliveStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		var k keepAlive
		k.start(time.Second, func() { checks++ })
		pass(2500 * time.Millisecond)
		require.Equal(t, 2, checks)
		k.set(true, 100*time.Millisecond)
		pass(250 * time.Millisecond)
		require.Equal(t, 4, checks)
		k.set(false, 0)
		pass(time.Minute)
		require.Equal(t, 4, checks)
		k.set(true, 0)
		pass(150 * time.Millisecond)
		require.Equal(t, 5, checks, "the period is the last one")
		k.stop()
		k.set(true, time.Second)
		pass(time.Minute)
		require.Equal(t, 5, checks)
	})
}
