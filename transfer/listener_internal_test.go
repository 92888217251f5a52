// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
)

// lines is a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// The log has data connections that end before they take slices.
func TestLogOfRefusals(t *testing.T) {
	need(t)
	for name, tt := range map[string]struct {
		begin func(r *rig, conn *rdmacm.Conn) error // what the dialer does instead of its first message
		want  string
	}{
		"breach": {func(r *rig, conn *rdmacm.Conn) error {
			memory, err := conn.Alloc(2, 0)
			if err != nil {
				return err
			}
			return conn.Send(r.ctx, memory.All())
		}, "a first message of 2 bytes"},
		"end": {func(_ *rig, conn *rdmacm.Conn) error { return conn.Close() }, "disconnected"},
	} {
		t.Run(name, func(t *testing.T) {
			log := make(lines, 100)
			r := newRig(t, Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
			_, p, w := r.session()
			conn, err := rdmacm.Dial(r.ctx, r.at, ptr(dataConfig(greeting{kind: kindData, path: 1, token: w.token})))
			require.NoError(t, err)
			require.NoError(t, tt.begin(r, conn))
			line := ""
			for !strings.Contains(line, "connection refused") {
				line = cmtest.Take(t, log, "the refusal")
			}
			require.Contains(t, line, conn.LocalAddr().String())
			require.Contains(t, line, tt.want)
			require.NoError(t, conn.Close())
			require.NoError(t, p.Close())
		})
	}
}
