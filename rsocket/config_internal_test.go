// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"os"
	"path/filepath"
	"testing"

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
