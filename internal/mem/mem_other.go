//go:build !unix

package mem

import "errors"

// Map fails.
func Map(int) ([]byte, error) { return nil, errors.ErrUnsupported }

// Unmap fails.
func Unmap([]byte) error { return errors.ErrUnsupported }
