//go:build !linux

package ibverbs

import "errors"

func dupCloseOnExec(int) (int, error) { return -1, errors.ErrUnsupported }
