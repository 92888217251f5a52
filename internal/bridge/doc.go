// Package bridge joins packages of this module where users should see no seam: what one
// needs of another's inside is a variable here, which the other fills when the program
// starts. Since the packages below cannot be imported from here, their types are any.
package bridge
