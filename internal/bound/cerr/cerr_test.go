// SPDX-License-Identifier: Apache-2.0

package cerr

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestResults(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want error
	}{
		"status 0":                {Status("f", 0, 5), nil},
		"status -1":               {Status("f", -1, 2), syscall.ENOENT},
		"status -1 without errno": {Status("f", -1, 0), syscall.EIO},
		"status with a bad errno": {Status("f", -1, -2), syscall.EIO},
		"status -errno":           {Status("f", -22, 0), syscall.EINVAL},
		"code 0":                  {Code("f", 0, 5), nil},
		"code of an errno":        {Code("f", 12, 0), syscall.ENOMEM},
		"count":                   {Count("f", 7, 5), nil},
		"count -1":                {Count("f", -1, 2), syscall.ENOENT},
		"count -errno":            {Count("f", -95, 2), syscall.EOPNOTSUPP},
		"null":                    {Null("f", 13), syscall.EACCES},
		"null without errno":      {Null("f", 0), syscall.EIO},
		"nil":                     {Nil("f", "p"), syscall.EINVAL},
		"zero byte":               {ZeroByte("f", "p"), syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, tt.err, tt.want)
			if tt.want == nil {
				require.NoError(t, tt.err)
			} else {
				require.ErrorContains(t, tt.err, "f: ")
			}
		})
	}
}

func TestUnsupported(t *testing.T) {
	for text, err := range map[string]error{
		"f: the installed libx.so.1 does not have it":                                                       &SymbolError{"f", "libx.so.1"},
		"cannot load libx.so.1: why":                                                                        &LibraryError{"libx.so.1", "-", "-", "why"},
		"cannot load libx.so.1 (on Debian and Ubuntu install libx1, on Fedora install x): why":              &LibraryError{"libx.so.1", "libx1", "x", "why"},
		"cannot use libx.so.1 in a program that is linked statically: link it dynamically, without -static": &StaticError{"libx.so.1"},
	} {
		require.EqualError(t, err, text)
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	require.EqualError(t, Nil("f", "p"), "f: p is nil")
	require.EqualError(t, ZeroByte("f", "p"), "f: p contains a zero byte")
	require.ErrorIs(t, Platform("f"), errors.ErrUnsupported)
	require.ErrorContains(t, Platform("f"), "f: ")
	require.Contains(t, whyNot("linux", "amd64"), "CGO_ENABLED=1")
	require.Equal(t, "the bindings need Linux on one of amd64, arm64, loong64, ppc64le, riscv64, s390x; this program was built for darwin/arm64",
		whyNot("darwin", "arm64"))
}
