// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package verbs

import "errors"

// Other systems than Linux have no devices.
func mapMemory(int, protection) ([]byte, error) { return nil, errors.ErrUnsupported }

func unmapMemory([]byte) error { return errors.ErrUnsupported }
