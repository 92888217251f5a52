// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package mem

import "errors"

// Map fails with errors.ErrUnsupported.
func Map(int) ([]byte, error) { return nil, errors.ErrUnsupported }

// Unmap fails with errors.ErrUnsupported.
func Unmap([]byte) error { return errors.ErrUnsupported }
