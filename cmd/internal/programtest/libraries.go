// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package programtest

import (
	"os"
	"os/signal"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// FakeLibraries returns the libraries of fakelib.RunCM. The test fails if, at
// its end, the libraries or Go have more open objects than when FakeLibraries
// was called.
func FakeLibraries(t *testing.T) (verbs, cm *fakelib.Provider) {
	t.Helper()
	_, stop := signal.NotifyContext(t.Context(), os.Interrupt)
	stop()                     // the runtime's goroutine for signals stays
	_, err := rdmacm.Devices() // rdmacm keeps these open
	require.NoError(t, err)
	testdevice.NoLeaks(t)
	return fakelib.OpenProvider(t), fakelib.OpenCM(t)
}
