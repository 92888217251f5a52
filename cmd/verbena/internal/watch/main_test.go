// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(Program)

func TestPrint(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	port, whole := event{at, "rxe0", 1, "port active"}, event{Time: at, Device: "rxe0", Event: "device added"}
	for _, tt := range []struct {
		event  event
		asJSON bool
		want   string
	}{
		{port, false, "2026-01-02T03:04:05.0000006Z rxe0 1 port active\n"},
		{whole, false, "2026-01-02T03:04:05.0000006Z rxe0 - device added\n"},
		{port, true, `{"time":"2026-01-02T03:04:05.0000006Z","device":"rxe0","port":1,"event":"port active"}` + "\n"},
		{whole, true, `{"time":"2026-01-02T03:04:05.0000006Z","device":"rxe0","event":"device added"}` + "\n"},
	} {
		var out bytes.Buffer
		require.NoError(t, (&options{asJSON: tt.asJSON}).print(&out, tt.event))
		require.Equal(t, tt.want, out.String())
		var back event
		if tt.asJSON {
			require.NoError(t, json.Unmarshal(out.Bytes(), &back))
			require.Equal(t, tt.event, back)
		}
	}
	broken, w := io.Pipe()
	require.NoError(t, broken.CloseWithError(errors.New("full")))
	require.ErrorContains(t, (&options{}).print(w, port), "full")
}

// Of what happens, only the wanted devices' is told, in order, until the
// context ends.
func TestEvents(t *testing.T) {
	w := &watcher{wanted: []string{"rxe0", "rxe1"}, happened: make(chan func() []event)}
	ctx, cancel := context.WithCancel(t.Context())
	w.waiters.Go(func() {
		w.send(ctx, func() []event { return []event{{Device: "rxe0", Event: "a"}, {Device: "rxe2", Event: "b"}} })
		w.send(ctx, func() []event { return nil })
		w.send(ctx, func() []event { return []event{{Device: "rxe1", Event: "c"}} })
		cancel()
		w.send(ctx, func() []event { return nil })
	})
	var seen []string
	for e := range w.events(ctx) {
		require.False(t, e.Time.IsZero())
		seen = append(seen, e.Device+" "+e.Event)
	}
	require.Equal(t, []string{"rxe0 a", "rxe1 c"}, seen)
	w.waiters.Wait()
}

func TestArguments(t *testing.T) {
	for args, want := range map[string]string{"-c x": "expected a number", "-c -1": "expected a number", "more": "unexpected argument"} {
		status, _, stderr := tested.Run(args)
		require.Equal(t, 2, status)
		require.Contains(t, stderr, want)
	}
}
