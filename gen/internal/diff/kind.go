// SPDX-License-Identifier: Apache-2.0

package diff

// Kind is the kind of a change.
type Kind string

// The kinds, as they stand in the JSON output.
const (
	HeaderAdded       Kind = "header added"
	HeaderRemoved     Kind = "header removed"
	FunctionAdded     Kind = "function added"
	FunctionRemoved   Kind = "function removed"
	PrototypeChanged  Kind = "prototype changed"
	ParametersRenamed Kind = "parameters renamed"
	NowInline         Kind = "function now inline"
	NowExported       Kind = "function now exported"
	InlineChanged     Kind = "inline body changed"
	BodyChanged       Kind = "body changed"
	NodeChanged       Kind = "node changed"
	NodeLost          Kind = "node lost"
	NodeGained        Kind = "node gained"
	EnumAdded         Kind = "enum added"
	EnumRemoved       Kind = "enum removed"
	EnumSignedness    Kind = "enum signedness changed"
	EnumSize          Kind = "enum size changed"
	EnumeratorAdded   Kind = "enumerator added"
	EnumeratorRemoved Kind = "enumerator removed"
	EnumeratorChanged Kind = "enumerator value changed"
	EnumeratorMoved   Kind = "enumerator moved"
	StructAdded       Kind = "struct added"
	StructRemoved     Kind = "struct removed"
	StructGrown       Kind = "struct grown"
	StructGrownFront  Kind = "struct grown at the front"
	StructShrunk      Kind = "struct shrunk"
	AlignmentChanged  Kind = "alignment changed"
	NowOpaque         Kind = "struct now opaque"
	NowComplete       Kind = "struct now complete"
	MemberAdded       Kind = "member added"
	MemberRemoved     Kind = "member removed"
	MemberRenamed     Kind = "member renamed"
	MemberMoved       Kind = "member moved"
	MemberTypeChanged Kind = "member type changed"
	MemberUnion       Kind = "member union changed"
	MacroAdded        Kind = "macro added"
	MacroRemoved      Kind = "macro removed"
	MacroValueChanged Kind = "macro value changed"
	MacroTypeChanged  Kind = "macro type changed"
	MacroTextChanged  Kind = "macro text changed"
	AliasAdded        Kind = "alias added"
	AliasRemoved      Kind = "alias removed"
	AliasChanged      Kind = "alias target changed"
	TypedefAdded      Kind = "typedef added"
	TypedefRemoved    Kind = "typedef removed"
	TypedefChanged    Kind = "typedef changed"
	VariableAdded     Kind = "variable added"
	VariableRemoved   Kind = "variable removed"
	VariableChanged   Kind = "variable type changed"
	RulesChanged      Kind = "layout rules changed"
	SpellingChanged   Kind = "spelling changed"
	HeaderChanged     Kind = "header changed"
)

// kinds lists every kind in the order of the output, with the words for one
// change of the kind and for several.
var kinds = []struct {
	kind      Kind
	one, many string
}{
	{HeaderAdded, "header added", "headers added"},
	{HeaderRemoved, "header removed", "headers removed"},
	{FunctionAdded, "function added", "functions added"},
	{FunctionRemoved, "function removed", "functions removed"},
	{PrototypeChanged, "prototype changed", "prototypes changed"},
	{ParametersRenamed, "function with renamed parameters", "functions with renamed parameters"},
	{NowInline, "function now inline", "functions now inline"},
	{NowExported, "function now exported", "functions now exported"},
	{InlineChanged, "inline body changed", "inline bodies changed"},
	{BodyChanged, "inline body with other words", "inline bodies with other words"},
	{NodeChanged, "ELF version node changed", "ELF version nodes changed"},
	{NodeLost, "ELF version node lost", "ELF version nodes lost"},
	{NodeGained, "ELF version node gained", "ELF version nodes gained"},
	{EnumAdded, "enum added", "enums added"},
	{EnumRemoved, "enum removed", "enums removed"},
	{EnumSignedness, "enum of changed signedness", "enums of changed signedness"},
	{EnumSize, "enum of another size", "enums of other sizes"},
	{EnumeratorAdded, "enumerator added", "enumerators added"},
	{EnumeratorRemoved, "enumerator removed", "enumerators removed"},
	{EnumeratorChanged, "enumerator with another value", "enumerators with another value"},
	{EnumeratorMoved, "enumerator moved to another enum", "enumerators moved to another enum"},
	{StructAdded, "struct added", "structs added"},
	{StructRemoved, "struct removed", "structs removed"},
	{StructGrown, "struct grown", "structs grown"},
	{StructGrownFront, "struct grown at the front", "structs grown at the front"},
	{StructShrunk, "struct shrunk", "structs shrunk"},
	{AlignmentChanged, "struct with another alignment", "structs with another alignment"},
	{NowOpaque, "struct now opaque", "structs now opaque"},
	{NowComplete, "struct now complete", "structs now complete"},
	{MemberAdded, "member added", "members added"},
	{MemberRemoved, "member removed", "members removed"},
	{MemberRenamed, "member renamed", "members renamed"},
	{MemberMoved, "member moved", "members moved"},
	{MemberTypeChanged, "member with another type", "members with another type"},
	{MemberUnion, "member that went into a union or out of one", "members that went into a union or out of one"},
	{MacroAdded, "macro added", "macros added"},
	{MacroRemoved, "macro removed", "macros removed"},
	{MacroValueChanged, "macro with another value", "macros with another value"},
	{MacroTypeChanged, "macro with another type", "macros with another type"},
	{MacroTextChanged, "macro with another text", "macros with another text"},
	{AliasAdded, "alias added", "aliases added"},
	{AliasRemoved, "alias removed", "aliases removed"},
	{AliasChanged, "alias with another target", "aliases with another target"},
	{TypedefAdded, "typedef added", "typedefs added"},
	{TypedefRemoved, "typedef removed", "typedefs removed"},
	{TypedefChanged, "typedef of another type", "typedefs of other types"},
	{VariableAdded, "variable added", "variables added"},
	{VariableRemoved, "variable removed", "variables removed"},
	{VariableChanged, "variable of another type", "variables of other types"},
	{RulesChanged, "layout rule changed", "layout rules changed"},
	{SpellingChanged, "type spelled in another way", "types spelled in another way"},
	{HeaderChanged, "declaration in another header", "declarations in another header"},
}
