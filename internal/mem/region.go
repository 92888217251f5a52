// SPDX-License-Identifier: Apache-2.0

package mem

// mapRegion does the work of Region outside of Go's heap.
func mapRegion(n int) (b []byte, free func(), err error) {
	if b, err = Map(n); err != nil {
		return nil, nil, err
	}
	return b, func() { _ = Unmap(b) }, nil // which cannot fail for mapped memory
}
