//go:build !linux

package mem

import "errors"

// MapHuge fails.
func MapHuge(int, int) ([]byte, error) { return nil, errors.ErrUnsupported }
