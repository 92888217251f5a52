// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package mem

import "errors"

// MapHuge always fails with errors.ErrUnsupported on this system.
func MapHuge(int, int) ([]byte, error) { return nil, errors.ErrUnsupported }
