// SPDX-License-Identifier: Apache-2.0

// Package softroce tests that programs get the device of package softroce when
// they choose it, and what they are told when they cannot have it.
package softroce
