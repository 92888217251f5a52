// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"testing"

	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

func TestSaysWhy(t *testing.T) { programtest.ServerSaysWhy(t, tested, "rdmaserver") }
