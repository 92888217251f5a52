// SPDX-License-Identifier: Apache-2.0

// Package bridge lets packages of this module use each other's internals. Each
// variable holds functions that one package sets when the program starts, for
// another to call. Their parameters are of type any, because this package
// cannot import the packages that declare the types.
package bridge
