// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package soft

import (
	"errors"
	"fmt"
)

var errOther = fmt.Errorf("the device is for Linux: %w", errors.ErrUnsupported)

func become(string, []string, []string) error { return errOther }

func privileges(string) (string, error) { return "", nil }

func isOwn(string) bool { return false }

func lock(string) (unlock func(), err error) {
	return nil, errOther
}
