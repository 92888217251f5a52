// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package mem

import "errors"

// Map always fails with errors.ErrUnsupported on this system.
func Map(int) ([]byte, error) { return nil, errors.ErrUnsupported }

// Unmap always fails with errors.ErrUnsupported on this system.
func Unmap([]byte) error { return errors.ErrUnsupported }
