// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package verbs

import (
	"errors"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
)

// dmaBuffer fails: other systems than Linux have no DMA buffers.
func dmaBuffer(*check.T, int) (b []byte, fd int, err error) { return nil, 0, errors.ErrUnsupported }
