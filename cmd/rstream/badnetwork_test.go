// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"testing"

	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

func TestMain(m *testing.M) {
	tested.BecomeOnBadNetwork()
	m.Run()
}

func TestBadNetwork(t *testing.T) {
	programtest.OnBadNetwork(t, "-b {S} -T v -C 5 -S 65536", "-s {S} -T v -C 5 -S 65536")
}
