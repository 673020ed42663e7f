//! Names of the libraries of Swift, names made for the purpose, and any text.

use proptest::prelude::*;

use super::*;

fn shown(name: &str) -> Option<String> {
    demangle(name, Modules::Shown)
}

/// Functions of Swift 6.2's standard library, Foundation and compiler, and their names.
const NAMES: &[(&str, &str)] = &[
    ("$s4main3runyyF", "main.run()"),
    ("_$s4main3runyyF", "main.run()"),
    ("$S4main3runyyF", "main.run()"),
    ("$s4main5QueueC4push2atySi_tF", "main.Queue.push(at:)"),
    (
        "$s20_CompilerSwiftSyntax013RawUnsafeExprC0V10expressionAA0dfC0Vvg",
        "_CompilerSwiftSyntax.RawUnsafeExprSyntax.expression.getter",
    ),
    (
        "$s10Foundation13DateFormatterC19shortWeekdaySymbolsSaySSGvs",
        "Foundation.DateFormatter.shortWeekdaySymbols.setter",
    ),
    (
        "$s10Foundation13MassFormatterC27unitStringDisplayedAdjacent7toValue0D0SSSd_AC4UnitOtF",
        "Foundation.MassFormatter.unitStringDisplayedAdjacent(toValue:unit:)",
    ),
    (
        "$s10Foundation10FileHandleC14fileDescriptorACs5Int32V_tcfC",
        "Foundation.FileHandle.__allocating_init(fileDescriptor:)",
    ),
    (
        "$s10Foundation11PortMessageC04sendB007receiveB010componentsAcA0B0CSg_AISayyXlGSgtcfc",
        "Foundation.PortMessage.init(sendPort:receivePort:components:)",
    ),
    (
        "$s10Foundation12NSExpressionCfD",
        "Foundation.NSExpression.__deallocating_deinit",
    ),
    (
        "$s19CompilerSwiftParser26IncrementalParseTransitionCfd",
        "CompilerSwiftParser.IncrementalParseTransition.deinit",
    ),
    (
        "$sSa15reserveCapacityyySiF",
        "Swift.Array.reserveCapacity(_:)",
    ),
    (
        "$sSS16_slowWithCString9encodedAs_xq_m_xSPy8CodeUnitQy_GKXEtKs16_UnicodeEncodingR_r0_lF",
        "Swift.String._slowWithCString<A, B>(encodedAs:_:)",
    ),
    (
        "$sSzsE1xoiyxx_xtFZ",
        "static Swift.BinaryInteger.^ infix(_:_:)",
    ),
    (
        "$ss4Int8VSzsSz1topyxxFZTW",
        "protocol witness for static Swift.BinaryInteger.~ prefix(_:) in conformance Swift.Int8",
    ),
    (
        "$ss5Int64V12SIMD2StorageVyABSicig",
        "Swift.Int64.SIMD2Storage.subscript.getter",
    ),
    (
        "$sST3SILAA7OperandV7ElementRtzrlE14endingLifetimes18LazyFilterSequenceVyxGvgSbACcfU_",
        "closure #1 in Swift.Sequence<>.endingLifetime.getter",
    ),
    (
        "$s20FoundationNetworking10URLSessionC24finishTasksAndInvalidateyyFyyYbcfU_yycfU_",
        "closure #1 in closure #1 in FoundationNetworking.URLSession.finishTasksAndInvalidate()",
    ),
    (
        "$sSK17_StringProcessingSs11SubSequenceRtzrlE6starts4withSbqd___tAA14RegexComponentRd__lFys15UnboundedRange_Ocfu_",
        "implicit closure #1 in Swift.BidirectionalCollection<>.starts<A>(with:)",
    ),
    (
        "$s12_RegexParser3ASTV4NodeO17_StringProcessingE07dslTreeD0AF7DSLTreeVADOvg7convertL_AJyKF",
        "convert #1 () in _RegexParser.AST.Node.dslTreeNode.getter",
    ),
    (
        "$s20FoundationEssentials8CalendarV14RecurrenceRuleV18_weekdayComponents3for2in6anchorSayAA04DateG0VGSgSayAE7WeekdayOG_AC9ComponentOAA0K0VtF9weekRangeL_SnySiGvg",
        "getter of weekRange #1 in FoundationEssentials.Calendar.RecurrenceRule._weekdayComponents(for:in:anchor:)",
    ),
    (
        "$s20FoundationEssentials3URLV8TemplateV6GlobalCAGyc33_EBC49918EB333C915B25285936FE24AFLlfc",
        "FoundationEssentials.URL.Template.Global.init()",
    ),
    (
        "$sSy20FoundationEssentialsE7compare_7options5rangeAA16ComparisonResultOqd___SSAAE14CompareOptionsVSnySS5IndexVGSgtSyRd__lFfA0_",
        "default argument 1 of Swift.StringProtocol.compare<A>(_:options:range:)",
    ),
    (
        "$s20FoundationEssentials3URLV8TemplateV8elementsSayAE7ElementOGvpfi",
        "variable initialization expression of FoundationEssentials.URL.Template.elements",
    ),
    (
        "$s20FoundationEssentials11LocaleCacheV5cache_WZ",
        "one-time initialization function for FoundationEssentials.LocaleCache.cache",
    ),
    (
        "$s20FoundationNetworking15_NativeProtocolC13internalStateAC09_InternalF0OvW",
        "FoundationNetworking._NativeProtocol.internalState.didset",
    ),
    (
        "$s10Foundation16NSDateComponentsC4hourSivM",
        "Foundation.NSDateComponents.hour.modify",
    ),
    (
        "$s20FoundationNetworking21HTTPCookiePropertyKeyV4nameACvau",
        "FoundationNetworking.HTTPCookiePropertyKey.name.unsafeMutableAddressor",
    ),
    (
        "$ss22_ContiguousArrayBufferV18_initStorageHeader5count8capacityySi_SitFs5UInt8V_Tg5",
        "specialized Swift._ContiguousArrayBuffer._initStorageHeader(count:capacity:)",
    ),
    (
        "$sSa9removeAll15keepingCapacityySb_tFfA_SS_Tg5",
        "specialized default argument 0 of Swift.Array.removeAll(keepingCapacity:)",
    ),
    (
        "$s20FoundationEssentials8CalendarV14RecurrenceRuleV27_expandOrLimitDaysOfTheYear5dates6anchor6actionySayAA4DateVGz_AkA15ComponentActionOtF06daysInL0L_SivgTf0snn_n",
        "specialized getter of daysInYear #1 in FoundationEssentials.Calendar.RecurrenceRule._expandOrLimitDaysOfTheYear(dates:anchor:action:)",
    ),
    (
        "$sSTsSQ7ElementRpzrlE8containsySbABFSbABXEfU_SS8UTF8ViewV_TG5TA.13",
        "partial apply for specialized closure #1 in Swift.Sequence<>.contains(_:)",
    ),
    (
        "$ss5Error_pSgIeghg_ABytIeghnr_TRTA",
        "partial apply for thunk for @escaping @callee_guaranteed @Sendable (@guaranteed Swift.Error?) -> ()",
    ),
    (
        "$s11Distributed0A29TargetInvocationResultHandlerP12onReturnVoidyyYaKFTjTQ0_",
        "dispatch thunk of Distributed.DistributedTargetInvocationResultHandler.onReturnVoid()",
    ),
    (
        "$sScs8IteratorVyxq__GScIsScI4next7ElementQzSgyYaKFTWTu",
        "async function pointer to protocol witness for Swift.AsyncIteratorProtocol.next() in conformance Swift.AsyncThrowingStream<A, B>.Iterator",
    ),
    (
        "$s20FoundationNetworking19NSMutableURLRequestC23httpShouldUsePipeliningSbvsAA12NSURLRequestCADSbvsTV",
        "vtable thunk for FoundationNetworking.NSURLRequest.httpShouldUsePipelining.setter dispatching to FoundationNetworking.NSMutableURLRequest.httpShouldUsePipelining.setter",
    ),
    (
        "$s12RegexBuilder17NegativeLookaheadVMa",
        "type metadata accessor for RegexBuilder.NegativeLookahead",
    ),
    (
        "$ss20__SwiftNativeNSArrayCMu",
        "method lookup function for Swift.__SwiftNativeNSArray",
    ),
    (
        "$sSSSg5label_yp5valuetWOc",
        "outlined init with copy of (label: Swift.String?, value: Any)",
    ),
    (
        "$ss6ResultOy20FoundationEssentials4DataVAC6Base64O13DecodingErrorOGSgWOe",
        "outlined consume of Swift.Result<FoundationEssentials.Data, FoundationEssentials.Base64.DecodingError>?",
    ),
    (
        "$s20FoundationEssentials14DateComponentsVSgWOi_",
        "outlined enum tag store of FoundationEssentials.DateComponents?",
    ),
    (
        "$s20FoundationEssentials18_CalendarGregorianC11_ordinality2of2in3forSiSgAA0C0V9ComponentO_AlA4DateVtAA0dC5ErrorOYKFTv0_",
        "outlined variable #1 of FoundationEssentials._CalendarGregorian._ordinality(of:in:for:)",
    ),
    (
        "$s20FoundationEssentials20PredicateExpressionsO12ForcedUnwrapVwxx",
        "destroy for FoundationEssentials.PredicateExpressions.ForcedUnwrap",
    ),
    (
        "$s10Foundation20NSTextCheckingResultC0C4TypeVAESYAAWl",
        "lazy protocol witness table accessor for type Foundation.NSTextCheckingResult.CheckingType and conformance Foundation.NSTextCheckingResult.CheckingType",
    ),
    (
        "$s22_FoundationCollections10OrderedSetVyxGSkAA7IndicesSl_SkWT",
        "associated type witness table accessor for Swift.Collection.Indices : Swift.RandomAccessCollection in _FoundationCollections.OrderedSet<A>",
    ),
    (
        "$s12_RegexParser3ASTV9ReferenceV4KindOSHAASQWb",
        "base witness table accessor for Swift.Equatable in _RegexParser.AST.Reference.Kind",
    ),
    (
        "$ss5Int16V13SIMD64StorageVyABSicipADTK",
        "key path getter for Swift.Int16.SIMD64Storage.subscript(_:) : Swift.Int16.SIMD64Storage",
    ),
    (
        "$s7Testing19__checkFunctionCall_7calling_10expression8comments10isRequired14sourceLocations6ResultOyyts5Error_pGx_Sbx_q_q_QptKXEq_q_QpAA12__ExpressionVSayAA7CommentVGyXKSbAA06SourceK0VtKRv_r0_lF",
        "Testing.__checkFunctionCall<A, each B>(_:calling:_:expression:comments:isRequired:sourceLocation:)",
    ),
    (
        "$s16_Differentiation13AnyDerivativeV1poiyA2C_ACtFZTJfSSUpSr",
        "forward-mode derivative of static _Differentiation.AnyDerivative.+ infix(_:_:)",
    ),
    // Identifiers with other characters than those of ASCII.
    ("$s4main0012vergenza_JFayyF", "main.vergüenza()"),
];

#[test]
fn names_are_without_types_of_parameters() {
    for (mangled, name) in NAMES {
        assert_eq!(shown(mangled).as_deref(), Some(*name), "{mangled}");
    }
}

#[test]
fn other_names_are_none_of_swift() {
    for name in [
        "",
        "$s",
        "_$s",
        "$s.",
        "$sF",
        "$s4mainF",
        "$s4main3runyyFTJ",
        "$s4main3runyyF_",
        "$s4main9runyyF",
        "$s4main3runyyé",
        "$s99999999999999999999a",
        "$sA_",
        "$s0a",
        "swift_allocObject",
        "_T04main3runyyF",
    ] {
        assert_eq!(shown(name), None, "{name}");
    }
}

#[test]
fn a_name_that_multiplies_itself_ends() {
    // Each tuple is twice the one before.
    let mut name = "$s4main1aVAAD_".to_owned();
    for letter in 'A'..='Z' {
        name.push_str(&format!("A{letter}_A{letter}tSg"));
    }
    name.push_str("WOy");
    let _ = shown(&name);
    let doubled = format!("$s{}WOy", "Sg_AAt".repeat(3_000));
    assert_eq!(shown(&doubled), None);
    for (step, most) in [
        ("Sg", 5_000),
        ("2000Si", 5_000),
        ("2000AA", 5_000),
        ("y", 60_000),
    ] {
        let name = format!("$sSi{}WOy", step.repeat(most));
        assert_eq!(shown(&name), None, "{step}");
    }
    // Parameters of a signature, and labels.
    for name in [
        format!(
            "$s4main3runyyx{}r{}lF",
            "Rvz".repeat(5_000),
            "999_".repeat(5_000)
        ),
        format!("$s4main3runyyx{}lF", "Rvz".repeat(15_000)),
        format!("$s4main3runy1_{}_tF", "2000Si".repeat(10)),
        format!(
            "$s4main3run1000{}{}yt_2000Si{}tF",
            "a".repeat(1_000),
            "AB".repeat(2_000),
            "Si".repeat(3)
        ),
    ] {
        assert!(shown(&name).is_none_or(|it| it.len() <= LONGEST));
    }
    // One word, again and again.
    let word = "a".repeat(1_000);
    let name = format!("$s1000{word}0{}A0yyF", "a".repeat(5_000));
    assert_eq!(shown(&name), None);
    // Decoded in quadratic time.
    assert_eq!(shown(&format!("$s0030000{}yyF", "a".repeat(30_000))), None);
}

/// Names and what `swift-demangle -simplified` makes of them, a tab between, in the file that SWIFT_NAMES names.
#[test]
#[ignore = "scripts/swift-names makes the file"]
fn swift_demangle_demangles_alike() {
    let path = std::env::var("SWIFT_NAMES").expect("SWIFT_NAMES");
    let pairs = std::fs::read_to_string(path).expect("names");
    let (mut all, mut compared) = (0, 0);
    let (mut wrong, mut unread) = (Vec::new(), Vec::new());
    for (mangled, theirs) in pairs.lines().filter_map(|it| it.split_once('\t')) {
        all += 1;
        let Some(ours) = demangle(mangled, Modules::Hidden) else {
            unread.push(mangled);
            continue;
        };
        compared += 1;
        // The reference finds a pack's parameter by its depth and its index exchanged, and has the type of a private
        // initializer without parameters for its name.
        let theirs = theirs.replace("each ", "").replace(".().init()", ".init()");
        if ours.replace("each ", "") != theirs {
            wrong.push(format!("{mangled}\n  ours   {ours}\n  theirs {theirs}"));
        }
    }
    println!(
        "{all} names, {compared} demangled, {} of them unlike",
        wrong.len()
    );
    for name in &unread {
        println!("not demangled: {name}");
    }
    assert!(compared > 10_000, "{compared} of {all}");
    assert!(unread.len() * 1_000 < all, "{} unread", unread.len());
    assert!(
        wrong.is_empty(),
        "{} of {compared} differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(50)].join("\n")
    );
}

proptest! {
    #[test]
    fn any_text_is_demangled_or_not(tail in "\\PC{0,60}", operators in "[A-Za-z0-9_$.]{0,200}") {
        let _ = shown(&tail);
        let _ = shown(&format!("$s{tail}"));
        let _ = shown(&format!("$s{operators}"));
        let _ = shown(&format!("$s4main3runyyF{operators}"));
    }

    #[test]
    fn near_names_are_demangled_or_not(
        index in 0..NAMES.len(),
        changes in proptest::collection::vec((0_usize..200, "[A-Za-z0-9_]{0,3}", 0_usize..4), 1..4),
    ) {
        let mut name = NAMES[index].0.to_owned();
        for (at, text, removed) in changes {
            let at = 2 + at % (name.len() - 2);
            let end = (at + removed).min(name.len());
            name.replace_range(at..end, &text);
        }
        if let Some(shown) = shown(&name) {
            prop_assert!(shown.len() <= LONGEST);
        }
    }

    #[test]
    fn two_names_are_spliced_or_not(first in 0..NAMES.len(), second in 0..NAMES.len(), at in 0_usize..200, from in 0_usize..200) {
        let (first, second) = (NAMES[first].0, NAMES[second].0);
        let spliced = format!("{}{}", &first[..at.min(first.len())], &second[from.min(second.len())..]);
        if let Some(shown) = shown(&spliced) {
            prop_assert!(shown.len() <= LONGEST);
        }
    }

    #[test]
    fn identifiers_are_kept(parts in proptest::collection::vec("[a-z_][A-Za-z_]{0,12}", 2..6)) {
        let (function, contexts) = parts.split_last().expect("parts");
        let mut mangled = String::from("$s");
        for (index, part) in contexts.iter().enumerate() {
            mangled.push_str(&format!("{}{part}", part.len()));
            mangled.push_str(if index > 0 { "C" } else { "" });
        }
        let mangled = format!("{mangled}{}{function}yyF", function.len());
        prop_assert_eq!(shown(&mangled), Some(format!("{}()", parts.join("."))));
    }
}
