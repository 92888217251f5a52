// SPDX-License-Identifier: Apache-2.0

package testdevice

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/object"
)

// fake records what becomes of a test.
type fake struct {
	testing.TB
	failed, skipped string
	cleanups        []func()
}

func (f *fake) Helper()                {}
func (f *fake) Cleanup(cleanup func()) { f.cleanups = append(f.cleanups, cleanup) }

func (f *fake) Errorf(format string, args ...any) { f.failed += fmt.Sprintf(format, args...) + "\n" }
func (f *fake) Fatalf(format string, args ...any) { f.failed = fmt.Sprintf(format, args...) }
func (f *fake) Skipf(format string, args ...any)  { f.skipped = fmt.Sprintf(format, args...) }

func TestRequire(t *testing.T) {
	if _, err := find(); err == nil {
		d := Require(t)
		require.NotEmpty(t, d.Name)
		require.Positive(t, d.Port)
		require.False(t, d.GID.IsZero())
		if os.Getenv("RDMA_VM") == "1" {
			require.Equal(t, "rxe0", d.Name)
			require.Equal(t, "192.0.2.1", d.IPv4.String())
			require.Equal(t, "2001:db8::1", d.IPv6.String())
			require.Equal(t, d.IPv4, d.GID.Addr())
			require.Equal(t, d, RequireSoftware(t))
		}
		return
	}
	t.Setenv("VERBENA_REQUIRE_DEVICE", "")
	f := &fake{TB: t}
	Require(f)
	require.Empty(t, f.failed)
	require.Contains(t, f.skipped, "needs an RDMA device")

	t.Setenv("VERBENA_REQUIRE_DEVICE", "1")
	f = &fake{TB: t}
	Require(f)
	require.Empty(t, f.skipped, "a test that must run is never skipped")
	require.Contains(t, f.failed, "VERBENA_REQUIRE_DEVICE is 1, but")
}

func TestNotSoftRoCE(t *testing.T) {
	d := Device{Name: "rxe, but not one of that driver"}
	require.False(t, d.SoftRoCE())
}

func TestNoLeaks(t *testing.T) {
	before := patience
	patience = 200 * time.Millisecond
	defer func() { patience = before }()
	for name, tt := range map[string]struct {
		leak func() (undo func())
		want []string
	}{
		"nothing": {leak: func() func() { return func() {} }},
		"object": {
			leak: func() func() {
				o := new(object.Object)
				o.Init("forgotten")
				return func() { _ = o.Close(nil, func() error { return nil }) }
			},
			want: []string{"1 objects were not closed", "forgotten, opened at", "testdevice_test.go"},
		},
		"goroutine": {
			leak: func() func() {
				stop := make(chan struct{})
				go func() { <-stop }()
				return func() { close(stop) }
			},
			want: []string{"1 goroutines did not end:\ngoroutine ", "testdevice_test.go"},
		},
		"file": {
			leak: func() func() {
				f, err := os.Open(os.DevNull)
				require.NoError(t, err)
				return func() { _ = f.Close() }
			},
			want: []string{"files that were not closed: ", "-> /dev/null"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{TB: t}
			NoLeaks(f)
			undo := tt.leak()
			defer undo()
			for _, cleanup := range f.cleanups {
				cleanup()
			}
			if len(tt.want) == 0 {
				require.Empty(t, f.failed)
			}
			for _, want := range tt.want {
				require.Contains(t, f.failed, want)
			}
		})
	}
}
