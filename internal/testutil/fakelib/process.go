// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakelib

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// inChild is an environment variable that is set in a process that has the fake
// libraries.
const inChild = "VERBENA_TEST_FAKELIB"

// Main runs the tests of a package in a process that has the libraries without
// a device. The functions in without are left out. TestMain must pass the
// result to os.Exit.
func Main(m *testing.M, without ...string) int {
	if os.Getenv(inChild) != "" {
		return m.Run()
	}
	return again(os.Args[1:], func(dir string) error { return build(dir, without) })
}

// ProviderMain is like Main, with a libibverbs that has a device; see Provider.
func ProviderMain(m *testing.M) int {
	if os.Getenv(inChild) != "" {
		return m.Run()
	}
	return again(os.Args[1:], buildProvider)
}

// CMMain is like ProviderMain, with a librdmacm on top of that device; see
// OpenCM.
func CMMain(m *testing.M) int {
	if os.Getenv(inChild) != "" {
		return m.Run()
	}
	return again(os.Args[1:], buildCM)
}

// VendorMain is like ProviderMain, with the drivers' libraries on top of that
// device; see OpenVendor.
func VendorMain(m *testing.M) int {
	if os.Getenv(inChild) != "" {
		return m.Run()
	}
	return again(os.Args[1:], buildVendors)
}

// RunCM runs the calling test again, alone, in a process that has the libraries
// of CMMain. In that process it returns true. Otherwise it waits for the
// process, makes the test fail if it failed there, and returns false.
func RunCM(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inChild) != "" {
		return true
	}
	if status := again([]string{"-test.run=^" + t.Name() + "$", "-test.v"}, buildCM); status != 0 {
		t.Errorf("with the fake libraries, the test ends with status %d", status)
	}
	return false
}

// again runs this test binary in a process that has the libraries that build
// compiles, and returns the exit status.
func again(args []string, build func(dir string) error) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "fakelib:", err)
		return 1
	}
	dir, err := os.MkdirTemp("", "fakelib")
	if err != nil {
		return fail(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := build(dir); err != nil {
		return fail(err)
	}
	self, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), inChild+"=1", "LD_LIBRARY_PATH="+dir, "VERBENA_DEVICE=") // not the device in user space
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		return fail(err)
	}
	if cmd.ProcessState.ExitCode() < 0 {
		return fail(fmt.Errorf("%v: %v", cmd.Args, cmd.ProcessState))
	}
	return cmd.ProcessState.ExitCode()
}
