// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"testing"

	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestSaysWhy(t *testing.T) {
	programtest.Have(t, testdevice.SRQs)
	programtest.ServerSaysWhy(t, tested, "rdmaxserver")
}
