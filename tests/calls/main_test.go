// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package calls

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"

	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func TestMain(m *testing.M) {
	os.Exit(fakelib.Main(m, missing...))
}

// library returns the one that has a function.
func library(t *testing.T, function string) *fakelib.Library {
	t.Helper()
	if strings.HasPrefix(function, "ibv_") {
		return fakelib.Open(t, "libibverbs.so.1")
	}
	return fakelib.Open(t, "librdmacm.so.1")
}

// reading is what a function of C returns and leaves in errno, and what Go
// makes of it.
type reading struct {
	function string
	result   int64
	errno    int32

	value any           // of a call that succeeds; nil if the function has none
	is    syscall.Errno // of a call that fails
	text  string        // of the error
}

// Some numbers of errno, which has 32 bits, signed.
const (
	enoent     = int32(syscall.ENOENT)
	eagain     = int32(syscall.EAGAIN)
	enomem     = int32(syscall.ENOMEM)
	ebusy      = int32(syscall.EBUSY)
	enodev     = int32(syscall.ENODEV)
	einval     = int32(syscall.EINVAL)
	enospc     = int32(syscall.ENOSPC)
	eopnotsupp = int32(syscall.EOPNOTSUPP)
	eaddrinuse = int32(syscall.EADDRINUSE)
)

// requireReadings makes the calls. All that fail give a *ibverbs.Error.
func requireReadings(t *testing.T, readings []reading) {
	t.Helper()
	for _, r := range readings {
		t.Run(fmt.Sprintf("%s/%d,%d", r.function, r.result, r.errno), func(t *testing.T) {
			l := library(t, r.function)
			l.Returns(r.result, r.errno)
			value, err := calls[r.function](l.Object(r.function))
			_, times, _ := l.Called()
			require.Equal(t, 1, times, "C is called once")
			if r.text == "" {
				require.NoError(t, err)
				require.Equal(t, r.value, value)
				return
			}
			requireZero(t, value)
			require.EqualError(t, err, r.text)
			require.ErrorIs(t, err, r.is)
			var e *ibverbs.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, r.function, e.Op)
			require.Empty(t, e.Object)
			require.Equal(t, r.is, e.Errno)
			require.False(t, errors.As(err, new(*cerr.Error)), "a type that users cannot name")
		})
	}
}

// requireZero looks at what comes with an error.
func requireZero(t *testing.T, value any) {
	t.Helper()
	if value != nil {
		require.Zero(t, reflect.ValueOf(value).Interface())
	}
}
