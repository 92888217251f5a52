// SPDX-License-Identifier: Apache-2.0

package object_test

import (
	"testing"

	"github.com/verbena-go/verbena/internal/object"
)

// BenchmarkUse is what each call of the data path pays for each object that it
// keeps from being closed meanwhile.
func BenchmarkUse(b *testing.B) {
	var o object.Object
	o.InitUnlisted("an object")
	for b.Loop() {
		if o.Use() == nil {
			o.Done()
		}
	}
}
