// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package dl

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// here is a device with one function.
func here(symbol string) unsafe.Pointer {
	if symbol == "ibv_fork_init" {
		return unsafe.Pointer(&devices)
	}
	return nil
}

// soft is the device.
var soft = Device{Find: here, Open: func(options string) error {
	if options == "udq" {
		return errors.New("there is no such network")
	}
	return nil
}}

func TestDeviceOfEnvironment(t *testing.T) {
	tests := []struct {
		name, value, want string
		provided          bool
		device            bool
	}{
		{"none", "", "", true, false},
		{"there", "soft", "", true, true},
		{"with options", "soft:udp", "", true, true},
		{"with options that are wrong", "soft:udq", "VERBENA_DEVICE=soft:udq: there is no such network", true, true},
		{
			"not in the program", "soft",
			`VERBENA_DEVICE=soft: this program does not have the device "soft": add to it: import _ "github.com/verbena-go/verbena/softroce"`,
			false, false,
		},
		{
			"unknown", "sofd",
			`VERBENA_DEVICE=sofd: unknown device "sofd" (known: soft); if VERBENA_DEVICE is not set, the devices of the installed libraries are used`,
			true, false,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(Variable, tt.value)
			var c choice
			if tt.provided {
				c.provide("soft", soft)
			}
			for _, library := range []string{"libibverbs.so.1", "librdmacm.so.1", "libibverbs.so.1"} {
				find, err := c.settle(library)
				require.Equal(t, tt.device, find != nil)
				if tt.want == "" {
					require.NoError(t, err)
				} else {
					require.EqualError(t, err, tt.want)
				}
				t.Setenv(Variable, "changed") // after the first, nothing changes
			}
		})
	}
}

func TestUse(t *testing.T) {
	t.Setenv(Variable, "unknown") // which does not matter
	var c choice
	require.EqualError(t, c.use("soft"),
		`this program does not have the device "soft": add to it: import _ "github.com/verbena-go/verbena/softroce"`)
	c.provide("soft", soft)
	require.ErrorContains(t, c.use("other"), `unknown device "other" (known: soft)`)
	require.NoError(t, c.use("soft"))
	find, err := c.settle("libibverbs.so.1")
	require.NoError(t, err)
	require.NotNil(t, find)
	require.NoError(t, c.use("soft"), "it is that already")
	require.ErrorContains(t, c.use("other"), "libibverbs.so.1 was loaded before")
}

func TestUseTooLate(t *testing.T) {
	t.Setenv(Variable, "")
	var c choice
	c.provide("soft", soft)
	find, err := c.settle("librdmacm.so.1")
	require.NoError(t, err)
	require.Nil(t, find)
	require.EqualError(t, c.use("soft"), `the device "soft" cannot be used any more: librdmacm.so.1 was loaded before; choose the device first`)
}

// A choice that failed is settled, too.
func TestUseAfterMistake(t *testing.T) {
	t.Setenv(Variable, "sofd")
	var c choice
	c.provide("soft", soft)
	_, err := c.settle("librdmacm.so.1")
	require.Error(t, err)
	require.ErrorContains(t, c.use("soft"), "librdmacm.so.1 was loaded before")
}

func TestTake(t *testing.T) {
	found := map[int]unsafe.Pointer{}
	l := Library{
		Symbols: []string{"getpid", "ibv_fork_init"},
		Set:     func(i int, f unsafe.Pointer) { found[i] = f },
	}
	l.take(here)
	require.Equal(t, map[int]unsafe.Pointer{1: unsafe.Pointer(&devices)}, found)
}

// A library that has nothing to do with verbs is opened whatever device was
// chosen.
func TestApart(t *testing.T) {
	t.Setenv(Variable, "unknown")
	settled, err := devices.settled, devices.err
	devices.settled, devices.err = "", nil
	defer func() { devices.settled, devices.err = settled, err }()
	found := 0
	load := func(apart bool) error {
		l := Library{Name: "libc.so.6", Apart: apart, Symbols: []string{"getpid"}, Set: func(int, unsafe.Pointer) { found++ }}
		return l.Load()
	}
	require.NoError(t, load(true))
	require.Equal(t, 1, found)
	require.Empty(t, devices.settled)
	require.ErrorContains(t, load(false), `device "unknown"`)
	require.Equal(t, 1, found)
}
