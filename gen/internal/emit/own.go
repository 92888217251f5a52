// SPDX-License-Identifier: Apache-2.0

package emit

import "strings"

// notWritten is why a function is not bound that could be.
const notWritten = "inline with logic of its own: the C function of ours is not written yet"

// Written reports whether the C function of our own for an inline function is
// there.
func Written(function string) bool {
	source := ownVerbs + ownRdmacm
	return strings.Contains(source, " own_"+function+"(") || strings.Contains(source, "*own_"+function+"(")
}
